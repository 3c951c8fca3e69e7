"""A connection makes progress on any input: it handles packets, waits for others, or ends.

A client may send packets that weigh one and more, in any pieces, for any window, and then bytes
that are no packet. The reference has an unlimited window and takes one packet after the other.
Turns are counted, and no time is measured: each one handles something, or is the last.
"""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubrec,
    Suback,
    Subscribe,
)
from flowguard.errors import PeerError
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.flowguard.codec.decoders import one_by_one
from tests.support.readings import payloads_in
from tests.support.stage import Client, Stage

MAX = 1_024
KINDS = "01hHpms"
"""QoS 0 and 1, the same for many, PINGREQ, QoS 2, SUBSCRIBE."""
TAILS = {
    "nothing": b"",
    "half a packet": b"\x30\x09\x00\x01a",
    "half a header": b"\x30",
    "body too short": b"\x30\x01\x00",
    "properties cut short": b"\x30\x03\x00\x01a",
    "no such type": b"\x00\x00",
    "identifier 0": b"\x32\x06\x00\x01a\x00\x00\x00",
    "too large": b"\x30\xff\x7f",
    "PUBACK too short": b"\x40\x01\x00",
    "length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "a packet of servers": b"\xd0\x00",
}


@dataclass
class Conversation:
    """The packets of one client, and the node's settings."""

    kinds: str
    tail: str
    cuts: list[int]
    window: int
    listeners: int
    """Number of listeners to the wide topic; a PUBLISH to it weighs one more than this number."""

    def packet(self, number: int) -> Packet:
        match self.kinds[number - 1]:
            case "p":
                return Pingreq()
            case "s":
                return Subscribe(number, (("other", SubscriptionOptions()),))
            case kind:
                topic = "many" if kind in "hH" else "a"
                qos = {"1": 1, "H": 1, "m": 2}.get(kind, 0)
                packet_id = number if qos else 0
                return Publish(topic, b"%d" % number, qos, packet_id=packet_id)

    @property
    def stream(self) -> bytes:
        numbers = range(1, len(self.kinds) + 1)
        return b"".join(encode(self.packet(number), MQTT_5) for number in numbers) + self.last

    @property
    def last(self) -> bytes:
        return TAILS[self.tail]

    def pieces(self) -> list[bytes]:
        stream = self.stream
        at = sorted(cut % (len(stream) + 1) for cut in self.cuts)
        return [stream[a:b] for a, b in zip([0, *at], [*at, len(stream)], strict=True) if a < b]


conversations = st.builds(
    Conversation,
    st.text(KINDS, max_size=60),
    st.sampled_from(sorted(TAILS)),
    st.lists(st.integers(0, 1 << 16), max_size=6),
    st.integers(1, 100),
    st.integers(0, 5),
)
fourteen_and_one_for_many = Conversation("0" * 13 + "h", "body too short", [], 100, 1)
fifteen = Conversation("0" * 15, "body too short", [], 100, 0)
sixteen = Conversation("1" * 16, "body too short", [], 100, 0)


PONG = (Pingresp, 0)


def answers_to(packets: list[Packet]) -> list[tuple[type[Packet], int]]:
    """Kind and packet identifier."""
    answers: list[tuple[type[Packet], int]] = []
    for packet in packets:
        match packet:
            case Pingreq():
                answers.append(PONG)
            case Subscribe(packet_id):
                answers.append((Suback, packet_id))
            case Publish(qos=1):
                answers.append((Puback, packet.packet_id))
            case Publish(qos=2):
                answers.append((Pubrec, packet.packet_id))
    return answers


def told(packets: list[Packet]) -> list[tuple[type[Packet], int]]:
    return [(type(packet), getattr(packet, "packet_id", 0)) for packet in packets]


def meet(talk: Conversation) -> tuple[Stage, Client]:
    """Return a node, and a witness of all messages; others get messages of the wide topic."""
    flow = {"window_max": talk.window, "cost_deliveries": 2}
    stage = Stage({"flow": flow, "session": {"packet_size_max": MAX}})
    witness = stage.connect("witness")
    witness.subscribe("a", "many")
    for number in range(2 * talk.listeners):
        stage.connect(f"listener-{number}").subscribe("many")
    return stage, witness


def send(client: Client, talk: Conversation) -> None:
    """Each turn handles a byte at least, or is the last."""
    for piece in talk.pieces():
        before = client.stage.passes
        client.send_bytes(piece)
        assert client.stage.passes - before <= len(piece) + 3


def without_end(client: Client, error: PeerError | None) -> list[Packet]:
    """Return the received packets of a connection that has ended for this reason, or goes on."""
    received = client.take()
    assert client.is_closed is (error is not None)
    if error is not None:
        goodbye = received.pop()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason_code == error.reason_code
    return received


@given(conversations)
@example(fourteen_and_one_for_many)
@example(fifteen)
@example(sixteen)
def test_what_is_done_at_once_is_handled_as_one_by_one(talk: Conversation) -> None:
    """But for PINGREQ, which does not wait where packets do."""
    stage, witness = meet(talk)
    client = stage.connect("c")
    packets, error = one_by_one(talk.stream, MQTT_5, MAX)
    send(client, talk)
    answers, expected = told(without_end(client, error)), answers_to(packets)
    assert answers.count(PONG) == expected.count(PONG)
    assert [each for each in answers if each != PONG] == [each for each in expected if each != PONG]
    assert payloads_in(witness.take()) == payloads_in(packets)


@given(conversations)
@example(fourteen_and_one_for_many)
@example(sixteen)
def test_what_waits_for_a_store_is_handled_as_one_by_one(talk: Conversation) -> None:
    """Until the bad packet is found: beside packets that wait it may be found before their turn."""
    stage, witness = meet(talk)
    stage.connect_durable("durable").subscribe("a", "many", qos=2)
    client = stage.connect("c")
    stage.hold_commits = True
    packets, error = one_by_one(talk.stream, MQTT_5, MAX)
    send(client, talk)
    commits = 0
    while stage.held is not None:
        stage.finish_commit()
        commits += 1
    assert commits <= len(packets) + 3
    answers = [each for each in told(without_end(client, error)) if each[0] is not Pingresp]
    expected = [each for each in answers_to(packets) if each[0] is not Pingresp]
    heard, said = payloads_in(witness.take()), payloads_in(packets)
    if error is None:
        assert answers == expected
        assert sorted(heard) == sorted(said)
    assert answers == expected[: len(answers)]
    assert sorted(heard) == sorted(said[: len(heard)])
