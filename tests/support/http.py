"""The HTTP port beside a real broker, and requests to it, byte by byte."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from flowguard.broker.server import Running, unix_clock
from flowguard.ops.web.http import listen, serve_http
from tests.support.real import TEST_S, broker

Address = tuple[str, int]
CHANGES = "X-Flowguard: 1"


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
        with trio.fail_after(TEST_S):
            while chunk := await stream.receive_some(65_536):
                data += chunk
    except trio.BrokenResourceError:
        pass
    await stream.aclose()
    return data


def head(request: str, *headers: str, host: str = "localhost") -> bytes:
    """`GET /path` with headers, all that comes before a body."""
    return "\r\n".join([f"{request} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def parts(answer: bytes) -> tuple[int, dict[str, str], str]:
    """Status code, headers by lower-case name, body."""
    top, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = (line.partition(": ") for line in lines)
    return int(first.split()[1]), {name.lower(): text for name, _, text in headers}, body.decode()


async def request(address: Address, request: str, *headers: str) -> tuple[int, str]:
    """Status code and body."""
    code, _, body = parts(await read_all(await send(address, head(request, *headers))))
    return code, body


async def post_backup(
    address: Address, body: object, *headers: str
) -> tuple[int, dict[str, str], dict[str, str]]:
    """Status code, headers, and what the JSON says."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    top = head("POST /backup", f"Content-Length: {len(data)}", *headers)
    code, answered, said = parts(await read_all(await send(address, top + data)))
    return code, answered, json.loads(said)
