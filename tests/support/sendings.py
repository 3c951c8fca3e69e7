"""Packets of a client, in the forms that several tests use."""

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet
from flowguard.config import KIB
from flowguard.types import Publish
from tests.support.client import WiredClient

CHUNK_BYTES = 16 * KIB


def send_chunks(client: WiredClient, data: bytes) -> None:
    """As a socket brings them, until the server has enough."""
    while data and not client.is_closed and client.connection.wants_read:
        size_bytes = min(CHUNK_BYTES, client.connection.read_bytes_max())
        client.send_bytes(data[:size_bytes])
        data = data[size_bytes:]


def large(version: int, payload_bytes: int = 500 * KIB) -> bytes:
    """A PUBLISH that does not fit into a chunk."""
    return encode(Publish("t", bytes(payload_bytes), 1, packet_id=1), version)


def numbered(*numbers: int, size_bytes: int = 0) -> list[bytes]:
    """Payloads that begin with these numbers."""
    return [b"%d " % number + bytes(size_bytes) for number in numbers]


def numbered_publishes(count: int, *, qos: int = 1) -> list[Packet]:
    return [Publish("a", b"%d" % number, qos, packet_id=number) for number in range(1, count + 1)]
