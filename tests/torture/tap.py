"""`python -m tests.torture.tap PORT`: between a proxy and its upstream, counts CONNECTs in process.

It prints `listening on HOST:PORT`, and at SIGTERM one line of JSON. Where the upstream refuses
connections it does so as well: it closes its listener until the upstream is back.
"""

import json
import signal
import socket
import sys

import trio

from benchmarks.brokers import free_port

HOST = "127.0.0.1"
READ_BYTES = 65_536
PROBE_S = 0.02
CONNECT, CONNACK = 0x10, 0x20


class Tap:
    """Relays bytes as they come."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.in_process = self.peak = self.connects = 0
        self.up = trio.Event()
        self.down = trio.Event()

    async def serve(self) -> None:
        """Listen while the upstream does, until cancelled."""
        port = 0
        while True:
            await self._wait_for_upstream()
            self.down = trio.Event()
            sock = trio.socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await sock.bind((HOST, port or free_port()))
            sock.listen(4_096)
            if not port:
                port = sock.getsockname()[1]
                sys.stdout.write(f"listening on {HOST}:{port}\n")
                sys.stdout.flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, self._relay, [trio.SocketListener(sock)])
                await self.down.wait()
                nursery.cancel_scope.cancel()

    async def _wait_for_upstream(self) -> None:
        while True:
            try:
                await (await trio.open_tcp_stream(HOST, self._upstream)).aclose()
                return
            except OSError:
                await trio.sleep(PROBE_S)

    async def _relay(self, client: trio.SocketStream) -> None:
        async with client:
            try:
                upstream = await trio.open_tcp_stream(HOST, self._upstream)
            except OSError:
                self.down.set()
                return
            async with upstream:
                await Conversation(self, client, upstream).run()


class Conversation:
    """One connection; its first byte each way begins and ends its time in process."""

    def __init__(self, tap: Tap, client: trio.SocketStream, upstream: trio.SocketStream) -> None:
        self._tap = tap
        self._client = client
        self._upstream = upstream
        self._is_in_process = False

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._up, nursery)
                nursery.start_soon(self._down, nursery)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._over()

    def _over(self) -> None:
        self._tap.in_process -= self._is_in_process
        self._is_in_process = False

    async def _up(self, nursery: trio.Nursery) -> None:
        is_first, tap = True, self._tap
        async for data in self._client:
            if is_first and data[0] == CONNECT:
                self._is_in_process = True
                tap.connects += 1
                tap.in_process += 1
                tap.peak = max(tap.peak, tap.in_process)
            is_first = False
            await self._upstream.send_all(data)
        nursery.cancel_scope.cancel()

    async def _down(self, nursery: trio.Nursery) -> None:
        async for data in self._upstream:
            if self._is_in_process and data[0] == CONNACK:
                self._over()
            await self._client.send_all(data)
        nursery.cancel_scope.cancel()


async def main(upstream: int) -> None:
    tap = Tap(upstream)
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tap.serve)
            await anext(aiter(signals))
            nursery.cancel_scope.cancel()
    sys.stdout.write(json.dumps({"peak": tap.peak, "connects": tap.connects}) + "\n")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
