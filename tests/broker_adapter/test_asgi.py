"""HTTP ingestion under Starlette, served by Hypercorn on a socket: a flood and a quiet principal.

The work is held until all have come; then the order in which it is done says who waited for whom.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from broker_adapter.asgi import IngestionGuard, Receive, Scope, Send, principal_of
from flowguard.config import FlowSettings
from tests.support.patience import HANG_S

FLOODING = 10
REQUESTS = 20
WINDOW = 2
WAITING = 3
CALM = FlowSettings(window_max=WINDOW, store_objective_s=1e9, loop_objective_s=1e9)


class Service:
    """One worker that takes all in the order in which they reach it, once it is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[str] = []
        """Principals, in the order of their work."""
        self.app = Starlette(routes=[Route("/ingest", self.ingest, methods=["POST"])])

    async def ingest(self, request: Request) -> PlainTextResponse:
        self.begun.append(request.headers["authorization"])
        place = len(self.begun)
        await self.open.wait()
        assert await request.body() == b"x" * 100
        return PlainTextResponse(str(place))


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """Its port."""
    config, stop = Config(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=500) as sock:
        port = sock.getsockname()[1]
        config.bind = [f"fd://{sock.detach()}"]
    config.errorlog = None
    server = asyncio.create_task(serve(app, config, shutdown_trigger=stop.wait))  # type: ignore
    try:
        yield port
    finally:
        stop.set()
        await server


async def post(port: int, principal: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    head = f"POST /ingest HTTP/1.1\r\nHost: a\r\nAuthorization: {principal}\r\n"
    writer.write(f"{head}Content-Length: 100\r\nConnection: close\r\n\r\n".encode() + b"x" * 100)
    answer = (await reader.read()).decode()
    writer.close()
    top, _, body = answer.partition("\r\n\r\n")
    first, *lines = top.split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, body


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def flood(port: int) -> "list[asyncio.Task[tuple[int, dict[str, str], str]]]":
    return [
        asyncio.create_task(post(port, f"flood-{number}"))
        for number in range(FLOODING)
        for _ in range(REQUESTS)
    ]


def test_a_flood_waits_in_windows_is_refused_with_a_time_and_delays_nobody_else() -> None:
    async def main() -> None:
        service = Service()
        rejected: list[str] = []
        middleware = IngestionGuard(
            service.app,
            CALM,
            waiting_max=WAITING,
            patience_s=1e9,
            on_reject=lambda client, kind, admission: rejected.append(client.client_id),
        )
        guard = middleware.guard
        async with serving(middleware) as port:
            flooding = await flood(port)
            await until(lambda: sum(task.done() for task in flooding) == refused_count)
            assert guard.in_process == WINDOW * FLOODING
            assert guard.waiting_count == WAITING * FLOODING
            assert guard.in_process_bytes == WINDOW * FLOODING * 100
            quiet = asyncio.create_task(post(port, "quiet"))
            await until(lambda: "quiet" in service.begun)
            assert service.begun.index("quiet") == WINDOW * FLOODING, "nobody else before it"
            service.open.set()
            assert (await quiet)[0] == 200
            answers = await asyncio.gather(*flooding)
        statuses = [status for status, _, _ in answers]
        assert statuses.count(503) == len(rejected) == refused_count
        assert "quiet" not in rejected
        assert len({*rejected}) == FLOODING
        assert statuses.count(200) == (WINDOW + WAITING) * FLOODING
        for status, headers, body in answers:
            if status == 503:
                assert int(headers["retry-after"]) >= 1
                assert "queue_messages" in body
        assert (guard.in_process, guard.waiting_count, middleware._clients) == (0, 0, {})

    refused_count = FLOODING * (REQUESTS - WINDOW - WAITING)
    asyncio.run(main())


def test_without_the_guard_all_of_the_flood_goes_before() -> None:
    async def main() -> None:
        service = Service()
        async with serving(service.app) as port:
            flooding = await flood(port)
            await until(lambda: len(service.begun) == FLOODING * REQUESTS)
            quiet = asyncio.create_task(post(port, "quiet"))
            await until(lambda: "quiet" in service.begun)
            service.open.set()
            assert (await quiet)[2] == str(FLOODING * REQUESTS + 1)
            await asyncio.gather(*flooding)

    asyncio.run(main())


def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    async def main() -> None:
        service = Service()
        middleware = IngestionGuard(
            service.app, CALM.model_copy(update={"window_max": 1}), patience_s=0.2
        )
        async with serving(middleware) as port:
            first = asyncio.create_task(post(port, "a"))
            await until(lambda: len(service.begun) == 1)
            status, headers, _ = await post(port, "a")
            assert status == 503
            assert "retry-after" in headers
            service.open.set()
            assert (await first)[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize("with_key", [True, False])
def test_principals_are_told_apart_by_key_or_address(with_key: bool) -> None:
    headers = [(b"authorization", b"key 1")] if with_key else []
    scope = {"headers": headers, "client": ("10.0.0.1", 5)}
    assert principal_of(scope) == ("key 1" if with_key else "10.0.0.1")


async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is done with its lifespan at once, and with a request when told so."""
    if scope["type"] == "http":
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Caller:
    """A server's side of the requests of one principal."""

    def __init__(self, app: IngestionGuard) -> None:
        self._app = app
        self._done = asyncio.Event()
        self.statuses: list[int] = []

    def request(self) -> "asyncio.Task[None]":
        scope = {"type": "http", "headers": [], "client": ("10.0.0.1", 5)}
        return asyncio.create_task(self._app(scope, self._receive, self._send))

    def end(self) -> None:
        self._done.set()

    async def _receive(self) -> dict[str, Any]:
        await self._done.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if "status" in message:
            self.statuses.append(message["status"])


async def nothing(*_: Any) -> Any:
    raise AssertionError


def test_requests_that_outlive_the_lifespan_are_answered_and_nothing_is_held() -> None:
    async def main() -> None:
        app = IngestionGuard(answer_late, CALM.model_copy(update={"window_max": 1}))
        caller = Caller(app)
        requests = [caller.request() for _ in range(2)]
        await until(lambda: app.guard.waiting_count == 1)
        await app({"type": "lifespan"}, nothing, nothing)
        caller.end()
        await asyncio.gather(*requests)
        assert caller.statuses == [200, 200]
        assert (app.guard.in_process, app._clients) == (0, {})

    asyncio.run(main())


def test_each_loop_that_serves_has_its_ticks() -> None:
    app = IngestionGuard(answer_late, CALM.model_copy(update={"window_max": 1}), patience_s=0.2)

    async def main() -> None:
        caller = Caller(app)
        request = caller.request()
        await until(lambda: app.guard.in_process == 1)
        await caller.request()  # Refused: somebody looks at how long it has waited.
        caller.end()
        await request
        assert caller.statuses == [503, 200]

    for _ in range(2):
        asyncio.run(main())
