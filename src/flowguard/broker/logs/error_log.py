"""Errors of single connections, for readers of the log: a few lines per interval.

A hook that fails for each client of a crowd, or a rejected crowd, must not fill a disk.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast, final

import structlog
import trio

from flowguard.broker.layers.layer import ByteStream
from flowguard.broker.logs.levels import is_logged, kind_log
from flowguard.broker.logs.overload_log import INTERVAL_S
from flowguard.broker.sockets.link import Link, peer_of
from flowguard.flow import Reason
from flowguard.node.connect.accept_state import LayerFault
from flowguard.node.connect.rejections import WILL_REFUSED
from flowguard.session.connection import ServerConnection
from flowguard.session.lives import AUTHENTICATION
from flowguard.session.states import State
from flowguard.types import ReasonCode

SHOWN_MAX: Final = 3
"""Lines of each kind that are shown per interval."""
TEXT_MAX: Final = 64
"""Characters of a client id or a topic that are shown."""
GATE_TEXTS: Final[dict[str, str]] = {
    Reason.GATE_BUFFER_FULL: "connect_buffer_max clients wait in the connect queue",
    Reason.GATE_BUFFER_BYTES: "the connect queue holds connect_buffer_bytes_max bytes",
    Reason.GATE_DEADLINE: "its CONNECT waited in the connect queue for too long",
    Reason.GATE_WAIT: "its CONNECT would wait in the connect queue for too long",
    Reason.GATE_MEMORY: "no memory for further CONNECTs in the connect queue",
    Reason.GATE_LIMIT: "too many CONNECTs are in process",
    Reason.GATE_RATE: "too many CONNECTs per second",
    Reason.GATE_SUPERSEDED: "its client id has sent another CONNECT",
}
"""Words in the log for each reason of the gate to reject a CONNECT."""

log = structlog.get_logger()


@final
class BoundedLog:
    """Shows the first few entries of each sort per interval; `run` logs the number of others."""

    def __init__(
        self,
        event: str,
        level: Literal["debug", "warning", "error"] = "warning",
        kind: str = "",
        shown_max: int = SHOWN_MAX,
    ) -> None:
        """`kind` has a level of its own (`levels`), or is "". At most `shown_max` entries of each
        sort are shown per interval."""
        self._event = event
        self._level = level
        self._kind = kind
        self._shown_max = shown_max
        self._shown: Counter[str] = Counter()
        self._suppressed: Counter[str] = Counter()

    def may_show(self, sort: str) -> bool:
        """Return True if one more entry is shown; otherwise count it under its sort.

        Entries below the level of their kind are not counted.
        """
        if self._kind and not is_logged(self._kind, self._level):
            return False
        if self._shown[sort] < self._shown_max:
            self._shown[sort] += 1
            return True
        self._suppressed[sort] += 1
        return False

    def show(self, **fields: Any) -> None:
        self._say(self._event, fields)

    def _say(self, event: str, fields: Mapping[str, Any]) -> None:
        getattr(kind_log if self._kind else log, self._level)(event, **fields)

    def raised(self, error: BaseException) -> None:
        """Show an error of a hook or of flowguard itself, with its traceback."""
        if self.may_show(type(error).__name__):
            self.show(exc_info=error)

    def flush(self) -> None:
        """End the interval: log the number of suppressed entries, and show new ones again."""
        if self._suppressed:
            self._say(f"{self._event}, not shown", self._suppressed)
        self._shown.clear()
        self._suppressed.clear()

    async def run(self) -> None:
        """Flush every interval, and at the end."""
        try:
            while True:
                await trio.sleep(INTERVAL_S)
                self.flush()
        finally:
            self.flush()


@final
class PeerLog:
    """Rejected clients, with their address, names and the reason; `logs` are to be run.

    Clients that are rejected because of their identity have an event of their own.
    """

    def __init__(self) -> None:
        self._rejected = BoundedLog("peer rejected")
        self._failures = BoundedLog("authentication failed", kind="authentication")
        self.logs: Final = (self._rejected, self._failures)

    def __call__(self, connection: ServerConnection, reason: ReasonCode, why: str) -> None:
        """`why`: details beyond the reason code, or ""."""
        packet = connection.connect_packet
        user_name = connection.tenant if packet is None else packet.username
        names = (connection.client_id, user_name)
        is_client = connection.state is State.CONNECTED
        self.reject(lambda: address_of(connection), names, reason, why, is_client=is_client)

    def reject(
        self,
        address: Callable[[], str],
        names: tuple[str | None, str | None],
        reason: ReasonCode,
        why: str,
        *,
        is_client: bool,
    ) -> None:
        """`names`: the client id and the user name."""
        gate_text = GATE_TEXTS.get(why)
        is_identity = not is_client and reason in AUTHENTICATION and why != WILL_REFUSED
        shown = self._failures if is_identity else self._rejected
        if not shown.may_show(why if gate_text else reason.name.lower()):
            return
        fields = zip(("client_id", "user_name"), names, strict=True)
        named = {field: printable(name) for field, name in fields if name}
        detail = {"why": f"{why}: {gate_text}" if gate_text else why} if why else {}
        shown.show(
            address=address(),
            **named,
            reason=_code_text(reason),
            **detail,
        )


def show_rejection(
    lines: BoundedLog, client_id: str, user: str, topic: str, reason: Reason | ReasonCode
) -> None:
    """Show a rejected PUBLISH, or a filter of a SUBSCRIBE: client, user, topic and reason."""
    if lines.may_show(reason.name.lower()):
        text = _code_text(reason) if isinstance(reason, ReasonCode) else str(reason)
        named = {"user_name": printable(user)} if user else {}
        lines.show(client_id=printable(client_id), **named, topic=printable(topic), reason=text)


def show_fault(lines: BoundedLog, fault: LayerFault, stream: object, why: str) -> None:
    """Show a connection that failed in TLS, WebSocket or the PROXY header (`OnFault`)."""
    if lines.may_show(fault):
        lines.show(address=peer_of(cast(ByteStream, stream)), reason=str(fault), why=why)


def address_of(connection: ServerConnection) -> str:
    link = connection.transport
    return link.peer() if isinstance(link, Link) else "unknown"


def _code_text(reason: ReasonCode) -> str:
    return f"0x{reason:02X} {reason.name.lower()}"


def printable(text: str) -> str:
    """Return a client's text without control characters, which a terminal would execute."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:TEXT_MAX])
    return shown if len(text) <= TEXT_MAX else f"{shown}..."
