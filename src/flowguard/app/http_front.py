"""The HTTP port of a broker while it is built."""

from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING, Final, final

import structlog

from flowguard.app.failures import StartError
from flowguard.app.stores import OnWait

if TYPE_CHECKING:
    from flowguard.app.waiting_http import WaitingHttp
    from flowguard.app.workers.seat import Seat

HTTP_HINT: Final = (
    "Another address: --http 127.0.0.1:0 chooses a free port, --http none does without"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpPort:
    """Where metrics, status and page are served."""

    host: str
    port: int
    is_required: bool
    """A port that is taken is an error; else the broker logs it and runs without HTTP."""


@final
class HttpFront:
    """Listens, and answers that the broker is not ready, until `hand_over`."""

    def __init__(
        self,
        port: HttpPort | None,
        seat: "Seat | None",
        names: frozenset[str],
        token: bytes | None,
    ) -> None:
        """`port`: the address, or None without HTTP. `seat` replaces it by its socket."""
        self._port = port
        self._seat = seat
        self._names = names
        self.token = token
        """The token that HTTP clients of other machines must have."""
        self.listener: socket | None = None
        """The listening socket, or None without HTTP."""
        self._waiting: WaitingHttp | None = None

    def listen(self) -> None:
        """Listen, unless it does already. Raises StartError."""
        if self._seat is not None:
            self.listener = self._seat.listen_http()
        elif self._port is not None and self.listener is None:
            self.listener = listen_http(self._port)
            self._answer()

    def listen_early(self, on_wait: OnWait | None) -> OnWait:
        """Listen for a stand-by if the port is free; it may be that of the other broker. Return
        the callback that reports the wait here and to `on_wait`."""
        from flowguard.ops.web.http import listen

        if self._port is not None:
            try:
                self.listener = listen(self._port.host, self._port.port)
            except OSError:
                log.info("standby: http port in use; listens after the takeover")
            else:
                host, port = self.listener.getsockname()[:2]
                log.info("standby: http listens", host=host, port=port)
                self._answer()

        def report(why: str, answers: bool) -> None:
            if self._waiting is not None:
                self._waiting.stands_by(why, answers=answers)
            if on_wait is not None:
                on_wait(why, answers)

        return report

    def _answer(self) -> None:
        from flowguard.app.waiting_http import WaitingHttp
        from flowguard.ops.web.http import Keys

        if self.listener is not None:
            self._waiting = WaitingHttp(self.listener, Keys(self._names, self.token))

    def hand_over(self) -> None:
        """Stop answering; the next server continues with the connections in the backlog."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()

    def close(self) -> None:
        self.hand_over()
        if self.listener is not None:
            self.listener.close()


def listen_http(port: HttpPort) -> socket | None:
    """Listen; return None if the port is taken and HTTP is not required."""
    # Here, because it takes a tenth of a second that --help does not need.
    from flowguard.ops.web.http import listen

    try:
        return listen(port.host, port.port)
    except OSError as error:
        place = f"[{port.host}]" if ":" in port.host else port.host
        what = f"cannot serve HTTP on {place}:{port.port}: {error.strerror}"
        if port.is_required:
            raise StartError(f"flowguard {what}", HTTP_HINT, 1, error) from error
        log.warning(f"{what}; running without it. {HTTP_HINT}")
        return None
