"""The HTTP port beside a real broker: what it answers, and what it never does to the broker."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.requests import Request
from structlog.testing import capture_logs

from flowguard.broker.server import Running, unix_clock
from flowguard.codec.packets import Puback
from flowguard.config import StoreSettings
from flowguard.ops import http
from flowguard.ops.backup import is_from_here
from flowguard.ops.http import CONNECTIONS_MAX, listen, serve_http
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.reader import StoreReader
from tests.support.real import (
    SlowStore,
    broker,
    connect,
    offline_subscriber,
    publishes,
    until,
)

Address = tuple[str, int]


@asynccontextmanager
async def watched(
    settings: dict[str, dict[str, Any]] | None = None, **options: Any
) -> AsyncIterator[tuple[Running, Address]]:
    """A broker and its HTTP port."""
    async with broker(settings, **options) as running, trio.open_nursery() as nursery:
        address: Address = await nursery.start(
            serve_http, running.node, unix_clock(), listen("127.0.0.1", 0), running.backup
        )
        yield running, address
        nursery.cancel_scope.cancel()


async def send(address: Address, data: bytes) -> trio.SocketStream:
    stream = await trio.open_tcp_stream(*address)
    await stream.send_all(data)
    return stream


async def read_all(stream: trio.SocketStream) -> bytes:
    """Until the other side closes; a reset after that is no matter here."""
    data = b""
    try:
        while chunk := await stream.receive_some(65_536):
            data += chunk
    except trio.BrokenResourceError:
        pass
    await stream.aclose()
    return data


async def request(address: Address, text: str) -> tuple[int, str]:
    """Status code and body."""
    lines = f"{text} HTTP/1.1\r\nHost: test\r\n\r\n".encode()
    head, _, body = (await read_all(await send(address, lines))).partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def test_metrics_are_what_prometheus_parses() -> None:
    async with watched() as (running, address):
        client = await connect(running, "c")
        code, body = await request(address, "GET /metrics")
        await client.close()
    assert code == 200
    values = {family.name: family.samples[0].value for family in parse(body)}
    assert values["flowguard_clients_connected"] == 1
    assert values["flowguard_memory_resident_bytes"] > 0


async def test_the_status_is_json() -> None:
    async with watched({"flow": {"window_max": 40}}) as (running, address):
        client = await connect(running, "c")
        code, body = await request(address, "GET /status")
        await client.close()
    status = json.loads(body)
    assert code == 200
    assert status["clients"]["connected"] == 1
    assert status["window"]["limit_max"] == 40
    assert 0 < status["memory"]["resident_bytes"] < status["memory"]["limit_bytes"]


@pytest.mark.parametrize("client_id", ["c", "a/b", "a b", "100%", "Zürich", "?x=#1"])
async def test_a_client_is_explained_whatever_its_name(client_id: str) -> None:
    async with watched() as (running, address):
        client = await connect(running, client_id)
        code, body = await request(address, f"GET /explain/{quote(client_id, safe='')}")
        await client.close()
    assert code == 200
    assert json.loads(body)["client_id"] == client_id


async def test_an_unknown_client_is_404() -> None:
    async with watched() as (_, address):
        code, body = await request(address, "GET /explain/nobody")
    assert code == 404
    assert "error" in json.loads(body)


@pytest.mark.parametrize(
    ("text", "expected"), [("GET /other", 404), ("POST /status", 405), ("GET /", 404)]
)
async def test_other_requests_are_told_what_there_is(text: str, expected: int) -> None:
    async with watched() as (_, address):
        code, body = await request(address, text)
    assert code == expected
    assert "/metrics" in json.loads(body)["error"]


async def test_health_is_503_while_the_broker_drains() -> None:
    async with watched() as (running, address):
        assert await request(address, "GET /health") == (200, "serving\n")
        running.node.drain(0.0)
        assert await request(address, "GET /health") == (503, "draining\n")


async def test_a_pause_is_explained() -> None:
    store = SlowStore()
    async with watched({"flow": {"window_max": 2}}, store=store, calm=True) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        store.open.clear()
        await publisher.send(*publishes("t", 5))
        await until(lambda: running.node.window.in_process == 2)
        _, body = await request(address, "GET /explain/p")
        store.open.set()
        await publisher.close()
    (pause,) = json.loads(body)["paused"]
    assert pause["reason"] == "window"


# --- backup ------------------------------------------------------------------------------------

JSON = "Content-Type: application/json"


async def post_backup(address: Address, body: object, *headers: str) -> tuple[int, dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = ["POST /backup HTTP/1.1", "Host: test", f"Content-Length: {len(data)}", *headers]
    answer = await read_all(await send(address, "\r\n".join([*lines, "", ""]).encode() + data))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def open_store(folder: Path) -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0)
    return RocksStore(folder, settings, wall_s=lambda: 1.7e9, random_node=lambda: 7)


async def test_a_backup_of_a_running_broker_has_all_that_it_acknowledged(tmp_path: Path) -> None:
    async with watched(store=open_store(tmp_path / "store")) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        await publisher.send(*publishes("t", 3))
        for _ in range(3):
            await publisher.expect(Puback)
        asked = {"folder": str(tmp_path / "copy")}
        assert await post_backup(address, asked, JSON) == (200, asked)
        await publisher.send(*publishes("t", 1))
        await publisher.expect(Puback)
        await publisher.close()
    with StoreReader(tmp_path / "copy") as reader:
        assert reader.identity.is_copy
        assert [session.queue.count for session in reader.sessions()] == [3]


async def test_backups_go_on_while_publishers_do(tmp_path: Path) -> None:
    async with watched(store=open_store(tmp_path / "store")) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        made: list[int] = []

        async def back_up() -> None:
            for number in range(3):
                code, _ = await post_backup(address, {"folder": f"{tmp_path}/{number}"}, JSON)
                made.append(code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(back_up)
            while len(made) < 3:
                await publisher.send(*publishes("t", 1))
                await publisher.expect(Puback)
        await publisher.close()
    assert made == [200] * 3
    counts = []
    for number in range(3):
        with StoreReader(tmp_path / str(number)) as reader:
            counts += [session.queue.count for session in reader.sessions()]
    assert counts == sorted(counts)


async def test_a_backup_that_cannot_be_made_says_why_and_the_broker_goes_on(
    tmp_path: Path,
) -> None:
    async with watched(store=open_store(tmp_path / "store")) as (running, address):
        for folder, why in ((tmp_path, "exists"), (tmp_path / "no" / "folder", "No such file")):
            code, answer = await post_backup(address, {"folder": str(folder)}, JSON)
            assert code == 409
            assert why in answer["error"]
        client = await connect(running, "c", durable=True)
        await client.close()
    async with watched() as (_, address):
        code, answer = await post_backup(address, {"folder": str(tmp_path / "copy")}, JSON)
    assert code == 409
    assert "memory" in answer["error"]


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ({"folder": "relative"}, JSON),
        ({"folder": 5}, JSON),
        ({"folder": "/a\0b"}, JSON),
        ({"folder": "/\ud800"}, JSON),
        (b'{"folder": "/\\udc80"}', JSON),
        ([], JSON),
        (b"no json", JSON),
        (b"x" * 20_000, JSON),
        ({"folder": "/somewhere"}, "Content-Type: text/plain"),
    ],
)
async def test_what_names_no_folder_is_400(body: object, header: str) -> None:
    async with watched() as (_, address):
        code, answer = await post_backup(address, body, header)
    assert code == 400
    assert "absolute" in answer["error"]


@pytest.mark.parametrize("header", ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1"])
async def test_a_backup_is_not_for_other_machines(header: str, tmp_path: Path) -> None:
    """Not through a proxy on this one, either."""
    async with watched(store=open_store(tmp_path / "store")) as (_, address):
        asked = {"folder": str(tmp_path / "copy")}
        assert (await post_backup(address, asked, JSON, header))[0] == 403
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_who_is_on_this_machine(host: str, here: bool) -> None:
    scope = {"type": "http", "client": (host, 1), "headers": []}
    assert is_from_here(Request(scope)) is here


# --- bounds ------------------------------------------------------------------------------------


async def test_bodies_are_not_read() -> None:
    header = b"GET /health HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000000\r\n\r\n"
    async with watched() as (_, address):
        stream = await send(address, header + bytes(10_000))
        assert b"200" in await read_all(stream)


async def test_a_header_without_end_is_refused() -> None:
    async with watched() as (_, address):
        stream = await send(address, b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000)
        answer = await read_all(stream)
        assert b" 4" in answer.split(b"\r\n")[0] or not answer
        assert (await request(address, "GET /health"))[0] == 200


async def test_nonsense_ends_its_own_connection_only() -> None:
    async with watched() as (running, address):
        for nonsense in (
            b"\x00\xff\x10MQTT",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100),
            b"GET /health HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\ntrailing",
            b"GET /health HTTP/1.1\r\nHost: t\r\nUpgrade: h2c\r\n"
            b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: !!\r\n\r\n" + bytes(50),
        ):
            await read_all(await send(address, nonsense))
        assert (await request(address, "GET /health"))[0] == 200
        client = await connect(running, "c")
        await client.ping()
        await client.close()


async def test_silent_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in the backlog for a place, and places become free by themselves."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http, "REQUEST_S", 0.02)
    async with watched() as (_, address):
        silent = [await trio.open_tcp_stream(*address) for _ in range(5)]
        assert (await request(address, "GET /health"))[0] == 200
        for stream in silent:
            assert await read_all(stream) == b""


async def test_a_peer_that_reads_nothing_does_not_keep_the_broker_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """hypercorn shields its writes: only a closed socket ends them."""

    def encode(_: object) -> bytes:
        return bytes(64 * 2**20)  # More than the sockets on both sides hold.

    monkeypatch.setattr(http, "choose_encoder", lambda _: (encode, "text/plain"))
    async with watched() as (_, address):
        stream = await send(address, b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")
        assert await stream.receive_some(1)
    await stream.aclose()


async def test_an_error_of_ours_is_500_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(http, "explain", broken)
    with capture_logs() as lines:
        async with watched() as (_, address):
            code, body = await request(address, "GET /explain/c")
            assert (await request(address, "GET /health"))[0] == 200
    assert code == 500
    assert "on purpose" not in body
    (line,) = [line for line in lines if line["event"] == "http request failed"]
    assert "on purpose" in str(line["exc_info"])


async def test_more_requests_than_connections_are_all_answered() -> None:
    codes: list[int] = []

    async def ask(address: Address) -> None:
        codes.append((await request(address, "GET /status"))[0])

    async with watched() as (_, address), trio.open_nursery() as nursery:
        for _ in range(3 * CONNECTIONS_MAX):
            nursery.start_soon(ask, address)
    assert codes == [200] * (3 * CONNECTIONS_MAX)
