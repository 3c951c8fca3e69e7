"""The HTTP port under slow peers, many at once, and a loop that has no time for all of them."""

import errno
import socket
from typing import Any, ClassVar

import pytest
import trio

from flowguard.broker.server import unix_clock
from flowguard.ops.web import endpoints, http, http_connection
from flowguard.ops.web.http import (
    CONNECTIONS_MAX,
    listen,
    serve_http,
)
from flowguard.ops.web.http_connection import Response, text_response
from flowguard.ops.web.turns import LOOP_SHARE, TURNS_WAITING_MAX, AnswerTurns
from tests.support.http import CHANGES, Address, head, parts, read_all, request, send, watched
from tests.support.real import (
    broker,
)

SLOW = {
    "silent": b"",
    "half a header": b"GET /health HTTP/1.1\r\nHost: loc",
    "half a body": head("POST /backup", CHANGES, "Content-Length: 100") + b"{",
    "reads nothing": head("GET /metrics"),
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for a peer ends by itself, and an answer is more than the sockets hold."""

    def encode(_: object) -> bytes:
        return bytes(16 * 2**20)

    monkeypatch.setattr(endpoints, "choose_encoder", lambda _: (encode, "text/plain"))
    monkeypatch.setattr(http_connection, "REQUEST_S", 1e6)
    monkeypatch.setattr(http_connection, "ANSWER_S", 1e6)


@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.usefixtures("patient")
async def test_health_is_answered_however_many_slow_peers_there_are(kind: str) -> None:
    """No place becomes free by waiting here: the oldest gives way."""
    async with watched() as (_, address):
        slow = [await send(address, SLOW[kind]) for _ in range(2 * CONNECTIONS_MAX)]
        for _ in range(CONNECTIONS_MAX):
            assert await request(address, "GET /health") == (200, "alive\n")
        for stream in slow:
            await stream.aclose()


@pytest.mark.usefixtures("patient")
async def test_places_are_bounded_and_it_is_the_oldest_that_gives_way() -> None:
    async with watched() as (_, address):
        silent = [await trio.open_tcp_stream(*address) for _ in range(CONNECTIONS_MAX)]
        assert (await request(address, "GET /health"))[0] == 200
        assert await read_all(silent[0]) == b""
        for stream in silent[1:]:
            await stream.send_all(head("GET /health"))
            assert parts(await read_all(stream))[0] == 200


async def test_who_is_too_slow_is_cut_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_S", 0.02)
    async with watched() as (_, address):
        for kind, code in (("half a header", 408), ("half a body", 408)):
            assert parts(await read_all(await send(address, SLOW[kind])))[0] == code
        assert await read_all(await send(address, b"")) == b""


@pytest.mark.usefixtures("patient")
async def test_a_peer_that_reads_nothing_does_not_keep_the_broker_from_ending() -> None:
    async with watched() as (_, address):
        stream = await send(address, head("GET /metrics"))
        assert await stream.receive_some(1)
    await stream.aclose()


async def test_many_at_once_are_answered_or_told_to_come_back() -> None:
    """All of them connect before the listener accepts."""
    listener = listen("127.0.0.1", 0)
    address: Address = listener.getsockname()[:2]
    async with broker() as running, trio.open_nursery() as nursery:
        streams = [await send(address, head("GET /status")) for _ in range(CONNECTIONS_MAX)]
        nursery.start_soon(serve_http, running.node, unix_clock(), listener, running.backup)
        answers = [parts(await read_all(stream)) for stream in streams]
        nursery.cancel_scope.cancel()
    served = [code for code, _, _ in answers if code == 200]
    refused = [headers["retry-after"] for code, headers, _ in answers if code == 503]
    assert len(served) > TURNS_WAITING_MAX
    assert refused == ["1"] * (CONNECTIONS_MAX - len(served))


class ShortOfDescriptors(socket.socket):
    """A listener that gets what `errors` say before it gets a connection."""

    errors: ClassVar[list[int]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors and (number := self.errors.pop(0)):
            raise OSError(number, "on purpose")
        return super().accept()


async def test_who_is_in_does_not_wait_for_descriptors(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ordinary = listen("127.0.0.1", 0)
    listener = ShortOfDescriptors(fileno=ordinary.detach())
    listener.setblocking(False)
    streams = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    listener.errors += [0, errno.ECONNABORTED, 0, errno.EMFILE, errno.EMFILE]
    for count, rests_s in ((2, 0), (0, http.ACCEPT_REST_S), (1, 0)):
        began_s = trio.current_time()
        accepted = await http._accept(listener)
        assert (len(accepted), trio.current_time() - began_s) == (count, rests_s)
        for one in accepted:
            one.close()
    for sock in (*streams, listener):
        sock.close()


async def test_answers_take_no_more_than_their_share_of_the_loop(
    mock_clock: trio.testing.MockClock,
) -> None:
    turns = AnswerTurns()
    ended_s: list[float] = []

    def make() -> Response:
        mock_clock.jump(0.1)  # The loop stands still for this time.
        ended_s.append(trio.current_time())
        return text_response("made")

    codes: list[int] = []

    async def take() -> None:
        codes.append((await turns.take(make)).code)

    async with trio.open_nursery() as nursery:
        for _ in range(TURNS_WAITING_MAX + 5):
            nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.autojump_threshold = 0
    assert sorted(codes) == [200] * (TURNS_WAITING_MAX + 1) + [503] * 4
    assert ended_s[-1] - ended_s[0] >= 0.1 / LOOP_SHARE * TURNS_WAITING_MAX * 0.999
