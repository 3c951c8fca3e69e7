"""Run the servers and calls of README.md and docs/operate/embedding.md as they stand there."""

import asyncio
import gc
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from benchmarks.brokers import free_port
from broker_adapter import AsyncGuard, RefusedError
from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
EMBEDDING = ROOT / "docs" / "operate" / "embedding.md"
LINES_MAX = 31
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket whose close resets the connection."""


def example(library: str) -> tuple[Callable[[], Any], int]:
    """Return the `main` of an example, and the port that it will listen on."""
    text = README.read_text() + EMBEDDING.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (source,) = [block for block in blocks if f"{library}_guard" in block]
    assert len(source.splitlines()) <= LINES_MAX
    port = free_port()
    names: dict[str, Any] = {}
    exec(source.replace("7007", str(port)), names)
    return names["main"], port


@asynccontextmanager
async def server_on_trio() -> AsyncIterator[int]:
    """Yield the port of a server, once it listens."""
    main, port = example("trio")
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(main)
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                    break
                except OSError:
                    await trio.sleep(0.01)
            await stream.aclose()
            yield port
            nursery.cancel_scope.cancel()


async def test_the_server_on_trio() -> None:
    async with server_on_trio() as port:
        await converse_on_trio(port)


async def converse_on_trio(port: int) -> None:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        heard = b""
        while len(heard) < len(b"welcome\n"):
            heard += await stream.receive_some(64)
        await stream.send_all(b"hello")
        while len(heard) < len(b"welcome\nhello"):
            heard += await stream.receive_some(64)
        assert heard == b"welcome\nhello"


async def test_the_server_on_trio_survives_clients_that_reset() -> None:
    async with server_on_trio() as port:
        await reset_on_trio(port)
        await converse_on_trio(port)


async def test_the_server_on_trio_survives_a_reset_while_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_reset = trio.Event()

    @asynccontextmanager
    async def refuse(*_: Any, **__: Any) -> AsyncIterator[None]:
        await is_reset.wait()
        raise RefusedError(None, 1.0)
        yield

    async with server_on_trio() as port:
        with monkeypatch.context() as patched:
            patched.setattr(AsyncGuard, "packet", refuse)
            await reset_on_trio(port)
            is_reset.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
        await converse_on_trio(port)


async def reset_on_trio(port: int) -> None:
    """Send much, take nothing, and end with a reset."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(bytes(100_000))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    await stream.aclose()


def test_the_server_on_asyncio() -> None:
    asyncio.run(check_on_asyncio(resets=0))


def test_the_server_on_asyncio_has_no_error_where_a_client_resets() -> None:
    asyncio.run(check_on_asyncio(resets=3))


async def check_on_asyncio(resets: int) -> None:
    main, port = example("asyncio")
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    async with asyncio.timeout(HANG_S):
        serving = asyncio.create_task(main())
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        writer.close()
        for _ in range(resets):
            await reset_on_asyncio(port)
        await converse_on_asyncio(port)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    gc.collect()  # An error that nobody has asked for is told when its task is thrown away.
    assert not errors


async def converse_on_asyncio(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.readexactly(len(b"welcome\n")) == b"welcome\n"
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()


async def reset_on_asyncio(port: int) -> None:
    """Send much, take nothing, and end with a reset."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(bytes(100_000))
    await writer.drain()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.close()
    await writer.wait_closed()


def test_the_five_calls_run_with_an_objective_of_their_own() -> None:
    page = EMBEDDING.read_text()
    (source,) = re.findall(
        r"```python\n(from broker_adapter import Guard\n.*?)```", page, re.DOTALL
    )
    names: dict[str, Any] = {"now_s": 0.0, "on_decided": print, "on_told": print}
    exec(source, names)
    assert "store_objective_s" in source
    assert names["guard"].in_process == 0
