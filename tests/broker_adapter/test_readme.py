"""The servers in the README run as they stand there."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from benchmarks.brokers import free_port

README = Path(__file__).parents[2] / "README.md"
LINES_MAX = 26


def example(library: str) -> tuple[Callable[[], Any], int]:
    """Its `main`, and the port that it will listen on."""
    blocks = re.findall(r"```python\n(import (\w+)\n.*?)```", README.read_text(), re.DOTALL)
    (source,) = [block for block, first in blocks if first == library]
    assert len(source.splitlines()) <= LINES_MAX
    port = free_port()
    names: dict[str, Any] = {}
    exec(source.replace("7007", str(port)), names)
    return names["main"], port


async def test_the_server_on_trio() -> None:
    main, port = example("trio")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(main)
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                break
            except OSError:
                await trio.sleep(0.01)
        await converse_on_trio(stream)
        nursery.cancel_scope.cancel()


async def converse_on_trio(stream: trio.SocketStream) -> None:
    async with stream:
        heard = b""
        while len(heard) < len(b"welcome\n"):
            heard += await stream.receive_some(64)
        await stream.send_all(b"hello")
        while len(heard) < len(b"welcome\nhello"):
            heard += await stream.receive_some(64)
        assert heard == b"welcome\nhello"


def test_the_server_on_asyncio() -> None:
    main, port = example("asyncio")

    async def check() -> None:
        serving = asyncio.create_task(main())
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        assert await reader.readexactly(len(b"welcome\n")) == b"welcome\n"
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        await writer.wait_closed()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(check())
