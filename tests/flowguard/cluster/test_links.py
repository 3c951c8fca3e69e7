"""One ordered pair of nodes: bounds, restarts, answers, and frames that are not allowed."""

from typing import Any

import pytest

from flowguard.cluster import (
    IncomingStream,
    LinkMessage,
    Members,
    Mesh,
    OutgoingStream,
    OwedAddress,
    PressureRecord,
)
from flowguard.cluster.frames import (
    FiltersConfirmed,
    Frame,
    LinkHello,
    MessageBatch,
    StreamDurable,
    StreamOpen,
    StreamRejected,
    encode_frame,
)
from flowguard.cluster.links import Then
from flowguard.errors import PeerError, ProtocolViolation

NAMES = ("w1", "w2")


def stream(messages_max: int = 100, bytes_max: int = 1_000) -> OutgoingStream:
    return OutgoingStream(1, messages_max, bytes_max)


def sent(out: OutgoingStream) -> list[tuple[int, bytes]]:
    """Numbers and data of all messages that are to be sent."""
    found: list[tuple[int, bytes]] = []
    while (batch := out.next_batch()) is not None:
        found += enumerate([message.data for message in batch.messages], batch.first)
    return found


def ignore(_now_s: float) -> None:
    """A message is durable."""


@pytest.mark.parametrize("bounds", [(2, 1_000), (100, 20)])
def test_a_stream_has_a_bound_on_messages_and_on_bytes(bounds: tuple[int, int]) -> None:
    out = stream(*bounds)
    out.open()
    out.put(bytes(10), ignore)
    assert out.has_capacity()
    address = out.owe(bytes(10))
    assert not out.has_capacity()
    out.put_owed(address, bytes(10))
    assert [number for number, _ in sent(out)] == [1, 2]
    out.answered(StreamDurable(1))
    assert out.has_capacity()
    out.answered(StreamDurable(2))
    assert (out.messages_count, out.bytes_count) == (0, 0)


def test_a_stream_that_restarts_sends_the_oldest_unanswered_message_first() -> None:
    out = stream()
    out.open()
    for data in (b"a", b"b", b"c"):
        out.put(data, ignore)
    assert len(sent(out)) == 3
    out.answered(StreamDurable(1))
    out.put(b"d", ignore)
    out.end()
    assert out.next_batch() is None
    assert out.open() == StreamOpen(2)
    assert sent(out) == [(2, b"b"), (3, b"c"), (4, b"d")]


def test_an_answer_that_was_late_counts_after_a_restart() -> None:
    out = stream()
    out.open()
    for data in (b"a", b"b", b"c"):
        out.put(data, ignore)
    assert len(sent(out)) == 3
    out.end()
    out.open()
    assert [each.number for each in out.answered(StreamDurable(2))] == [1, 2]
    assert sent(out) == [(3, b"c")]


def test_an_answer_for_a_message_that_was_not_sent_is_an_error() -> None:
    out = stream()
    out.open()
    out.put(b"a", ignore)
    with pytest.raises(ProtocolViolation, match="message 1 is durable, but was not sent"):
        out.answered(StreamDurable(1))


def test_owed_messages_of_earlier_incarnations_come_first_under_their_addresses() -> None:
    out = OutgoingStream(9, 100, 1_000)
    out.recover([((3, 7), b"a"), ((4, 1), b"b")])
    address = out.owe(b"c")
    assert address == (9, 1)
    out.put_owed(address, b"c")
    out.open()
    batch = out.next_batch()
    assert batch is not None
    assert [each.owed for each in batch.messages] == [(3, 7), (4, 1), (9, 1)]


def test_a_stream_with_a_missing_message_is_an_error() -> None:
    into = IncomingStream()
    into.meet(1)
    assert into.open(StreamOpen(5)) == StreamDurable(4)
    with pytest.raises(ProtocolViolation, match="a batch begins with 6, 5 is the next"):
        into.take(MessageBatch(6, (LinkMessage(b"a"),)))
    into.meet(1)
    with pytest.raises(ProtocolViolation, match="a stream opens at 6, 5 is the next"):
        into.open(StreamOpen(6))


class Host:
    """A node whose commits are made by the test."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.commits: list[Then] = []
        self.unnumbered: tuple[bytes, ...] = ()
        self.reason = ""

    def opened(self, peer: str) -> None: ...

    def answered(self, peer: str) -> None: ...

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        self.taken += [message.data for message in messages]
        self.commits.append(then)

    def rejection(self) -> str:
        return self.reason

    def filters_changed(self, peer: str, added: list[str], removed: list[str]) -> None: ...

    def take_unnumbered(self, peer: str, messages: tuple[bytes, ...], now_s: float) -> None:
        self.unnumbered += messages

    def filters_confirmed(self, now_s: float) -> None: ...

    def delivered(self, peer: str, address: OwedAddress) -> None: ...

    def pressure_received(self, record: PressureRecord, now_s: float) -> None: ...


class Acceptor:
    """Node w2, which w1 dials with frames that a test chooses."""

    def __init__(self) -> None:
        self.host = Host()
        members = Members("w2", 1, NAMES)
        self.mesh = Mesh(members, self.host, {"w1": stream()}, {"w1": IncomingStream()}, 10_000)

    def dialled(self, incarnation: int) -> Any:
        connection = self.mesh.accept()
        self.send(connection, LinkHello("w1", incarnation))
        return connection

    def send(self, connection: Any, *frames: Frame) -> None:
        self.mesh.receive(connection, b"".join(map(encode_frame, frames)), 0.0)

    def answers(self, connection: Any) -> bytes:
        return self.mesh.output(connection)


def batch(first: int, *data: bytes) -> MessageBatch:
    return MessageBatch(first, tuple(map(LinkMessage, data)))


def test_the_answer_waits_for_the_commit() -> None:
    node = Acceptor()
    link = node.dialled(1)
    node.send(link, StreamOpen(1))
    node.answers(link)
    node.send(link, batch(1, b"a", b"b"))
    assert node.answers(link) == b""
    node.host.commits[0](0.0)
    assert node.answers(link) == encode_frame(StreamDurable(2))


def test_a_commit_of_an_earlier_incarnation_does_not_answer_the_next_one() -> None:
    """The model check found it: between the hello and the first stream the old numbers counted."""
    node = Acceptor()
    before = node.dialled(1)
    node.send(before, StreamOpen(1), batch(1, b"a", b"b"))
    link = node.dialled(2)
    node.answers(link)
    node.host.commits[0](0.0)
    assert node.answers(link) == b""
    node.send(link, StreamOpen(1), batch(1, b"c"))
    assert node.answers(link) == encode_frame(StreamDurable(0))


def test_messages_come_once_over_two_links_of_one_incarnation() -> None:
    node = Acceptor()
    before = node.dialled(1)
    node.send(before, StreamOpen(1), batch(1, b"a", b"b"))
    link = node.dialled(1)
    node.send(link, StreamOpen(1), batch(1, b"a", b"b", b"c"))
    assert node.host.taken == [b"a", b"b", b"c"]
    with pytest.raises(PeerError, match="has a newer link"):
        node.send(before, batch(4, b"d"))


def test_a_rejected_stream_ignores_batches_until_it_opens_again() -> None:
    node = Acceptor()
    link = node.dialled(1)
    node.send(link, StreamOpen(1))
    node.answers(link)
    node.host.reason = "the disk is full"
    node.send(link, batch(1, b"a"))
    node.host.reason = ""
    node.send(link, batch(2, b"b"))
    assert node.host.taken == []
    assert node.answers(link) == encode_frame(StreamRejected("the disk is full"))
    node.send(link, StreamOpen(1), batch(1, b"a"), batch(2, b"b"))
    assert node.host.taken == [b"a", b"b"]


def test_a_dead_incarnation_is_ignored_on_open_links_and_on_new_ones() -> None:
    node = Acceptor()
    link = node.dialled(4)
    node.mesh.died("w1", 4, 0.0)
    with pytest.raises(PeerError, match="incarnation 4 died"):
        node.send(link, StreamOpen(1))
    with pytest.raises(PeerError, match="incarnation 4 of 'w1' has ended"):
        node.dialled(4)
    assert node.dialled(5).incarnation == 5


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (StreamDurable(0), "an unexpected frame of 'w1': StreamDurable"),
        (LinkHello("w1", 1), "an unexpected hello of 'w1'"),
        (FiltersConfirmed(1), "change 1 of filters is confirmed, the last is 0"),
        (PressureRecord("w3", 1, 1, 1.0, 0.0, None, 1), "an unexpected frame of 'w1': Pressure"),
    ],
)
def test_a_frame_that_is_not_allowed_closes_the_link(frame: Frame, reason: str) -> None:
    node = Acceptor()
    link = node.dialled(1)
    with pytest.raises(PeerError, match=reason):
        node.send(link, frame)


def test_a_dialled_peer_must_answer_with_its_own_name_first() -> None:
    node = Acceptor()
    for frame, reason in (
        (StreamDurable(0), "a frame before the hello"),
        (LinkHello("w3", 1), "an unexpected hello of 'w3'"),
    ):
        link = node.mesh.dial("w1")
        with pytest.raises(PeerError, match=reason):
            node.send(link, frame)
        node.mesh.lost(link)
    link = node.mesh.dial("w1")
    node.send(link, LinkHello("w1", 1))
    with pytest.raises(PeerError, match="an unexpected frame of 'w1': MessageBatch"):
        node.send(link, batch(1, b"a"))
