"""Out of file descriptors: who is in is served, who knocks waits, and nothing spins."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from flowguard.broker.server import listen
from flowguard.codec.packets import Connack
from tests.support.real import Wire, broker, connect, connect_packet, until


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Lower the soft limit to what is open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class CountingListener(socket.socket):
    """A listening socket that counts how often somebody tries to accept."""

    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        return super().accept()


async def test_clients_beyond_the_last_descriptor_wait_and_get_in_once_there_is_one() -> None:
    listener = CountingListener(fileno=listen("127.0.0.1", 0).detach())
    async with broker(listener=listener) as running:
        inside = await connect(running, "inside")
        knocking = []
        for number in range(5):
            sock = trio.socket.socket()
            knocking.append((f"c{number}", sock))
        with no_descriptor_left():
            wires = []
            for client_id, sock in knocking:
                await sock.connect(running.address)  # By the kernel; nobody accepts it yet.
                wire = Wire(trio.SocketStream(sock), 5)
                await wire.send(connect_packet(client_id))
                wires.append(wire)
            await until(lambda: listener.tries > 4)  # Each tick tries again.
            before = listener.tries
            for _ in range(100):
                await inside.ping()
            assert listener.tries - before < 100, "the listener spins instead of resting"
            assert running.node.connections_count == 1
        for wire in wires:
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()
        await inside.close()


async def test_a_peer_that_resets_before_it_is_accepted_harms_nobody() -> None:
    async with broker() as running:
        for _ in range(200):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                sock.connect(running.address)
        client = await connect(running, "c")
        await until(lambda: running.node.connections_count == 1)
        await client.close()
