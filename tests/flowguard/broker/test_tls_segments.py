"""The broker's bytes at the end of a TLS handshake, and the number of segments."""

import socket
import ssl
import sys
from pathlib import Path

import pytest
import trio

from flowguard.broker.server import Running
from flowguard.codec.encoder import encode
from tests.flowguard.broker.test_layer_gate import HOST, doorway_of
from tests.support.authority import Authority
from tests.support.real import broker, connect_packet

pytestmark = pytest.mark.slow


class Client:
    """A client that sends its first data together with the end of its handshake."""

    def __init__(self, running: Running, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=HOST)
        self.sock = socket.create_connection(running.address)
        self.sock.setblocking(False)

    async def shake_hands(self) -> None:
        """All of it; the last is not sent."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send()
                await self.hear()
            else:
                return

    async def send(self) -> None:
        await trio.socket.from_stdlib_socket(self.sock).send(self.outgoing.read())

    async def hear(self) -> None:
        await trio.lowlevel.wait_readable(self.sock)
        self.incoming.write(self.sock.recv(65_536))

    @property
    def segments(self) -> int:
        """With data, that have come: `tcpi_data_segs_in`."""
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 156)
        return int.from_bytes(info[152:156], sys.byteorder)


CONNECT = encode(connect_packet("c"), 5)


@pytest.mark.parametrize(
    ("said", "is_answered"),
    [(CONNECT, True), (CONNECT[:3], False)],
    ids=["a whole CONNECT", "a part of one"],
)
async def test_the_last_of_a_handshake_leaves_with_the_answer_to_what_came_with_it_if_there_is_one(
    said: bytes, is_answered: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    async with broker(listener=[doorway_of(authority)]) as running:
        client = Client(running, authority.client_context())
        await client.shake_hands()
        before = client.segments
        client.tls.write(said)
        await client.send()
        await client.hear()
        assert client.segments == before + 1
        if is_answered:
            assert client.tls.read()[0] == 0x20  # With the ticket in one segment.
        client.sock.close()
