"""HTTP of a broker that takes no clients yet: it opens its store, or stands by for another broker.

A second thread answers requests, because the thread of the broker waits for the store.
"""

import time
from socket import socket
from threading import Event, Thread
from typing import Final, final

import trio

from flowguard.broker.logs.error_log import BoundedLog
from flowguard.ops.web.endpoints import HEALTH, READY
from flowguard.ops.web.http import HttpServer, Keys, accept_all
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    json_response,
    text_response,
)

METRICS: Final = """\
# HELP flowguard_standby 1 while the broker waits for the end of another one, else 0.
# TYPE flowguard_standby gauge
flowguard_standby {:d}
# HELP flowguard_store_away_seconds Time since the store stopped accepting writes, or 0.
# TYPE flowguard_store_away_seconds gauge
flowguard_store_away_seconds {:.1f}
"""


@final
class WaitingHttp:
    """Answers on `listener` until `end`, which leaves it open."""

    def __init__(self, listener: socket, keys: Keys) -> None:
        self.listener = listener
        self._keys = keys
        self._why = ""
        """The other broker, or the error of the store, for callers that may read the status."""
        self._away_since_s: float | None = None
        """Time since which the store of a standby broker does not answer, or None."""
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._has_begun = Event()
        self._thread = Thread(target=trio.run, args=(self._run,), name="waiting-http", daemon=True)
        self._thread.start()

    def stands_by(self, why: str, *, answers: bool) -> None:
        """Note the other broker, or the error of a store that does not answer."""
        self._why = why
        if answers:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = time.monotonic()

    def end(self) -> None:
        """Stop answering; the next server continues with the connections in the backlog."""
        self._has_begun.wait()
        if self._thread.is_alive() and self._token is not None:
            self._token.run_sync_soon(self._scope.cancel)
            self._thread.join()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._has_begun.set()
        errors = BoundedLog("http request failed", "error")
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(errors.run)
                await accept_all(self.listener, HttpServer(self._respond, errors.raised))

    async def _respond(
        self, request: Request, connection: HttpConnection, server: HttpServer
    ) -> Response | None:
        refusal = self._keys.refusal_of(request)
        if refusal is not None:
            return refusal
        if request.path == HEALTH:
            return text_response("alive")
        why = "not ready: standby" if self._why else "not ready: starting"
        away_s = self._away_s()
        if away_s:
            why += f"; Redis has not answered for {away_s:,.0f} s"
        if request.path == READY:
            return text_response(why, 503)
        if request.path == "/metrics":
            return text_response(METRICS.format(bool(self._why), away_s).rstrip())
        if self._why:
            why += f" ({self._why})"
        return json_response({"error": why}, 503, retry_after="1")

    def _away_s(self) -> float:
        since_s = self._away_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s
