"""Messages that a client has received, in the forms that tests compare."""

from flowguard.codec.packets import Packet, Puback
from flowguard.types import Publish
from tests.support.client import WiredClient


def received(client: WiredClient) -> list[Publish]:
    """The PUBLISH packets that have come, not acknowledged."""
    return client.publishes(acknowledge=False)


def payloads(client: WiredClient) -> list[bytes]:
    return [message.payload for message in client.publishes()]


def payloads_in(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def numbers(client: WiredClient, *, acknowledge: bool = True) -> list[int]:
    return [int(message.payload) for message in client.publishes(acknowledge=acknowledge)]


def first_numbers(client: WiredClient) -> list[int]:
    """The numbers with which payloads begin (`tests.support.sendings.numbered`)."""
    return [int(message.payload.split(b" ")[0]) for message in client.publishes()]


def intervals(client: WiredClient) -> list[int | None]:
    """The message expiry intervals, seconds."""
    return [message.properties.message_expiry_interval for message in client.publishes()]


def summary(messages: list[Publish]) -> list[tuple[bytes, int, bool]]:
    return [(message.payload, message.packet_id, message.dup) for message in messages]


def identifiers(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets]


def acknowledged(client: WiredClient) -> list[int]:
    return [packet.packet_id for packet in client.take() if isinstance(packet, Puback)]


def in_process(client: WiredClient) -> int:
    """Cost units that the client has in process."""
    assert client.connection.inbound is not None
    return client.connection.inbound.window.in_process
