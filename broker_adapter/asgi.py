"""ASGI middleware: windows per principal for HTTP ingestion, and 503 with Retry-After beyond them.

    app = Starlette(routes=[...])
    app.add_middleware(IngestionGuard, waiting_max=10)      # or: app = IngestionGuard(app)

A request is a packet of its principal, in process until the application has answered it. A
principal whose window is full waits before a byte of the body is read. Above `waiting_max` waiting
requests, or after `patience_s`, the answer is 503. WebSockets and lifespan pass unchanged. For
servers on asyncio (uvicorn, hypercorn).
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from math import ceil
from typing import Any, final

from broker_adapter.asyncio_guard import AsyncioBell, Ticking
from broker_adapter.host_guard import GuardedClient, HostGuard, OnReject
from broker_adapter.waits import AsyncGuard, RefusedError
from flowguard.config import FlowSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def principal_of(scope: Scope) -> str:
    """Return the value of the Authorization header, or the client's address."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value, "latin-1")
    client = scope.get("client")
    return client[0] if client else ""


@final
class IngestionGuard:
    """One per application; `principal` returns a request's principal, `cost` its cost. In
    `on_reject` the principal is the `client_id`."""

    def __init__(
        self,
        app: App,
        settings: FlowSettings | None = None,
        *,
        principal: Callable[[Scope], str] = principal_of,
        cost: Callable[[Scope], int] = lambda scope: 1,
        waiting_max: int = 100,
        patience_s: float | None = None,
        on_reject: OnReject | None = None,
    ) -> None:
        self._app = app
        self._principal = principal
        self._cost = cost
        self.guard = HostGuard(
            settings,
            waiting_max=waiting_max,
            patience_s=patience_s,
            on_reject=on_reject,
        )
        self._loop: asyncio.AbstractEventLoop
        self._host: AsyncGuard | None = None
        """The guard on that loop, or None before its first request."""
        self._ticking: Ticking | None = None
        self._clients: dict[str, tuple[GuardedClient, int]] = {}
        """Principals with open requests, and the number of these."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            if scope["type"] == "lifespan":
                self._end()
            return
        if self._host is None or self._loop.is_closed():
            self._host = self._begin()
        host = self._host
        name = self._principal(scope)
        client = self._enter(name)
        try:
            async with host.packet(client, self._cost(scope), _content_length(scope)):
                await self._app(scope, receive, send)
        except RefusedError as refused:
            await _refuse(refused, send)
        finally:
            self._leave(name, host)

    def _begin(self) -> AsyncGuard:
        """Start at the first request of a loop, which will serve all of them."""
        self._end()
        self._loop = asyncio.get_running_loop()
        self._ticking = Ticking(self.guard, self._loop)
        return AsyncGuard(self.guard, self._loop.time, AsyncioBell)

    def _end(self) -> None:
        if self._ticking is not None:
            self._ticking.stop()
        self._host = self._ticking = None

    def _enter(self, name: str) -> GuardedClient:
        client, count = self._clients.get(name) or (self.guard.client(name), 0)
        self._clients[name] = (client, count + 1)
        return client

    def _leave(self, name: str, host: AsyncGuard) -> None:
        """Forget a principal without open requests, because clients can invent any number of
        names."""
        client, count = self._clients[name]
        if count > 1:
            self._clients[name] = (client, count - 1)
        else:
            del self._clients[name]
            host.gone(client)


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _refuse(refused: RefusedError, send: Send) -> None:
    body = f"busy ({refused.reason}): come back later\n".encode()
    headers = [
        (b"retry-after", b"%d" % ceil(refused.retry_after_s)),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
