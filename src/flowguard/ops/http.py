"""HTTP: metrics, status and health on a port of their own, from inside the broker's event loop.

    GET /metrics               for Prometheus
    GET /status                the node at this instant, JSON
    GET /explain/{client_id}   one client, JSON; 404 when there is no session of that name
    GET /health                200 while the node serves, 503 while it drains
    POST /backup               {"folder": "..."}: a copy of the store, there; for this machine only

A Starlette application on hypercorn's trio worker. The worker is used connection by connection
instead of through `hypercorn.trio.serve`, which accepts without a bound, lets an error in one
connection end the server, and shields its writes: a peer that reads nothing would keep the broker
from ending. Here connections are few, each serves one request, and none outlives CONNECTION_S.
Nobody is asked who they are: keep the port on 127.0.0.1, or behind a proxy.
"""

from collections.abc import Callable
from socket import socket
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from flowguard.broker.error_log import ErrorLog
from flowguard.broker.housekeeping import memory_gauge, memory_limit_bytes
from flowguard.broker.server import listen as listen_broker
from flowguard.node.node import Node
from flowguard.ops.backup import Backup, back_up
from flowguard.ops.explain import explain
from flowguard.ops.metrics import registry_of
from flowguard.ops.status import MemoryStatus, View
from flowguard.telemetry.progress import Progress

CONNECTIONS_MAX: Final = 8
"""At once; who comes then waits in the backlog."""
BACKLOG: Final = 16
CONNECTION_S: Final = 10.0
"""From accept to close, whatever the peer does."""
REQUEST_S: Final = 3.0
"""From accept to a complete header."""
ACCEPT_REST_S: Final = 1.0
"""After an accept that failed: there are no descriptors, and clients of MQTT go first."""
HEADER_BYTES_MAX: Final = 16 * 1024


def listen(host: str, port: int) -> socket:
    """A listening socket for `serve_http`; port 0: a free one. Raises OSError."""
    sock = listen_broker(host, port)
    sock.listen(BACKLOG)
    return sock


def application(view: View, backup: Backup, on_error: Callable[[Exception], None]) -> Starlette:
    """The endpoints. They run on the event loop: the node is read between two of its turns."""
    registry = registry_of(view)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    async def status(_: Request) -> Response:
        return JSONResponse(view.status())

    async def explain_client(request: Request) -> Response:
        client_id = request.path_params["client_id"]
        explanation = explain(view.node, client_id, view.clock())
        if explanation is None:
            return JSONResponse({"error": "no session of this client here"}, 404)
        return JSONResponse(explanation)

    async def health(_: Request) -> Response:
        if view.node.draining:
            return PlainTextResponse("draining\n", 503)
        return PlainTextResponse("serving\n")

    async def backup_store(request: Request) -> Response:
        return await back_up(request, backup)

    async def failed(_: Request, error: Exception) -> Response:
        on_error(error)
        return JSONResponse({"error": "the broker's log says more"}, 500)

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/status", status),
            Route("/explain/{client_id:path}", explain_client),  # A client id may hold a slash.
            Route("/health", health),
            Route("/backup", backup_store, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused, Exception: failed},
    )


async def _refused(_: Request, error: Exception) -> Response:
    """Another path, another method."""
    assert isinstance(error, HTTPException)
    body = {"error": "GET /metrics, /status, /explain/CLIENT_ID or /health; POST /backup"}
    return JSONResponse(body, error.status_code, error.headers)


async def serve_http(
    node: Node,
    clock: Callable[[], float],
    listener: socket,
    backup: Backup,
    recording: Progress | None = None,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listener` until cancelled, then close it; starts with its address.

    Errors end the connection they happen in and are logged, a few per interval.
    """
    limit_bytes = node.settings.flow.memory_max_bytes or memory_limit_bytes()
    with memory_gauge() as resident_bytes, listener:
        view = View(
            node,
            clock,
            lambda: MemoryStatus(resident_bytes=resident_bytes(), limit_bytes=limit_bytes),
            recording,
        )
        errors = ErrorLog("http request failed")
        door = _Door(application(view, backup, errors), errors)
        listener.setblocking(False)
        accepting = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(errors.run)
            task_status.started(listener.getsockname()[:2])
            while True:
                await door.places.acquire()
                nursery.start_soon(door.serve, await _accept(accepting))


async def _accept(listener: trio.socket.SocketType) -> trio.SocketStream:
    while True:
        try:
            sock, _ = await listener.accept()
            return trio.SocketStream(sock)
        except OSError:
            await trio.sleep(ACCEPT_REST_S)


class _Door:
    """Lets connections in to the application, few at a time and none for long."""

    def __init__(self, app: Starlette, on_error: Callable[[Exception], None]) -> None:
        config = Config()
        config.accesslog = config.errorlog = None
        config.include_server_header = False
        config.h11_max_incomplete_size = HEADER_BYTES_MAX
        config.h2_max_concurrent_streams = 1
        config.keep_alive_timeout = REQUEST_S
        config.keep_alive_max_requests = 1
        self._config = config
        self._app = wrap_app(cast(ASGIFramework, app), config.wsgi_max_body_size, "asgi")
        self._context = WorkerContext(None)
        self.places = trio.Semaphore(CONNECTIONS_MAX)
        self._on_error = on_error

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, from its first byte to its last; frees its place."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_close_at_the_end, stream)
                server = TCPServer(
                    self._app, self._config, self._context, ConnectionState({}), cast(Any, stream)
                )
                await server.run()
                nursery.cancel_scope.cancel()
        except* Exception as group:
            self._on_error(group)
        finally:
            self.places.release()


async def _close_at_the_end(stream: trio.SocketStream) -> None:
    """Close when the time is up or the connection is over: that wakes even a shielded write."""
    try:
        await trio.sleep(CONNECTION_S)
    finally:
        stream.socket.close()
