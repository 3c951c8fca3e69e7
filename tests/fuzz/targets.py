"""What a fuzzer runs: bytes in, an AssertionError or a foreign exception where something is wrong.

`decode` holds every way to read the same bytes against each other; `converse` has a client say them
to a node that others use. Neither measures time: what would hang is caught by counting steps.
"""

from collections.abc import Iterator

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Connect, Packet, Puback, Subscribe
from flowguard.config import Settings
from flowguard.errors import PeerError
from flowguard.types import MQTT_5, SubscriptionOptions
from tests.support.stage import Client, Stage

VERSIONS = (0, 3, 4, 5)
SIZES_MAX = (64, 1024, 1024 * 1024)
STEPS_MAX = 64
"""Passes of a node beyond one per byte and per answer of its peer."""
SETTINGS = Settings.model_validate(
    {
        "flow": {"window_max": 4, "cost_deliveries": 1, "cost_bytes": 32, "journal_ops_max": 8},
        "session": {
            "packet_size_max": 4_096,
            "receive_maximum": 4,
            "topic_alias_maximum": 2,
            "inflight_max": 2,
            "queue_messages_max": 4,
            "subscriptions_max": 8,
            "topic_levels_max": 8,
        },
    }
)
FILTERS = (("#", SubscriptionOptions(1)), ("$share/g/#", SubscriptionOptions(2)))
Outcome = tuple[list[Packet], PeerError | None]


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    """`data` in pieces of up to 64 bytes, or whole; which is up to `seed`, 0 to 255."""
    if not seed:
        yield data
        return
    at = 0
    while at < len(data):
        seed = (seed * 73 + 41) & 0xFF
        size = 1 + (seed & 63)
        yield data[at : at + size]
        at += size


# --- the decoder ---------------------------------------------------------------------------------


def decode(data: bytes) -> None:
    """All ways to read a stream agree on its packets, and on what is wrong with it."""
    if len(data) < 3:
        return
    options, seed, stream = data[0], data[1], data[2:]
    version = VERSIONS[options & 3]
    size_max = SIZES_MAX[(options >> 2) % 3]
    role = "client" if version and options & 16 else "server"

    def fresh() -> PacketDecoder:
        return PacketDecoder(size_max, version, role=role)  # type: ignore[arg-type]

    packets, error = one_by_one(fresh(), stream)
    assert_same((packets, error), in_batches(fresh(), stream, seed), "batches")
    if role == "server":
        at_once = fresh().at_sight(stream)
        if isinstance(at_once, int):
            at_once = Puback(at_once)
        assert at_once is None or (error is None and packets == [at_once])
        control_first(fresh(), stream, (packets, error))


def one_by_one(decoder: PacketDecoder, stream: bytes) -> Outcome:
    """The plain way, which the others are compared with."""
    packets: list[Packet] = []
    decoder.feed(stream)
    try:
        while True:
            before = decoder.buffered_bytes
            packet = decoder.next()
            if packet is None:
                return packets, None
            assert decoder.buffered_bytes < before, "a packet that took no bytes"
            packets.append(packet)
    except PeerError as error:
        return packets, error


def in_batches(decoder: PacketDecoder, stream: bytes, seed: int) -> Outcome:
    """As they come from a socket, for windows of 1 to 16 packets."""
    packets: list[Packet] = []
    try:
        for piece in pieces(stream, seed):
            decoder.feed(piece)
            room = 1 + (seed & 15)
            while batch := decoder.next_batch(room):
                packets += batch
    except PeerError as error:
        return packets, error
    return packets, None


def control_first(decoder: PacketDecoder, stream: bytes, plain: Outcome) -> None:
    """Acknowledgements and PINGREQ are taken ahead, the rest follows, each in its order."""
    taken: list[Packet] = []
    decoder.feed(stream)
    try:
        taken += [Puback(packet_id) for packet_id in decoder.take_pubacks()]
        while (packet := decoder.next_control()) is not None:
            taken.append(packet)
        ahead = len(taken)
        while (packet := decoder.next()) is not None:
            taken.append(packet)
    except PeerError:
        return
    packets, error = plain
    assert error is None
    assert len(taken) == len(packets)
    kinds = {type(packet) for packet in taken[:ahead]}
    for kind in kinds:
        ours = [packet for packet in taken if type(packet) is kind]
        assert ours == [packet for packet in packets if type(packet) is kind]


def assert_same(expected: Outcome, found: Outcome, how: str) -> None:
    assert found[0] == expected[0], f"{how}: other packets"
    codes = [error and (type(error), error.reason_code) for _, error in (expected, found)]
    assert codes[0] == codes[1], f"{how}: {codes[1]} instead of {codes[0]}"


# --- a connection --------------------------------------------------------------------------------


class CountingStage(Stage):
    """A stage whose node has to come to rest."""

    steps_left = 0

    def settle(self) -> None:
        take_a_step(self)
        super().settle()

    def _commit(self) -> bool:
        take_a_step(self)
        return super()._commit()


class Stranger(Client):
    """Reads whatever version the server answers in: what it said is up to the fuzzer."""

    def carry(self) -> None:
        self._decoder.version = self.connection.outbound.version
        super().carry()


def take_a_step(stage: CountingStage) -> None:
    """Counts down; a node that does not come to rest runs out of steps."""
    stage.steps_left -= 1
    assert stage.steps_left >= 0, "the node does not come to rest"


def converse(data: bytes) -> None:
    """A stranger says these bytes to a node that two others use; it holds nothing afterwards."""
    if len(data) < 3:
        return
    options, seed, stream = data[0], data[1], data[2:]
    stage = CountingStage(SETTINGS)
    stage.steps_left = STEPS_MAX * 4 + 8 * len(stream)
    others = [stage.connect("a"), stage.connect_durable("b")] if options & 1 else []
    for other in others:
        other.send(Subscribe(1, FILTERS))
    stranger = Stranger(stage, VERSIONS[options & 3] or MQTT_5)
    if options & 4:
        stranger.send(Connect("c", stranger.version, False))
    for piece in pieces(stream, seed):
        if not stranger.is_closed and stranger.connection.wants_read:
            stranger.send_bytes(piece)
        if options & 8:
            stage.advance(0.1)
    stranger.close()
    stage.advance(0.1)
    assert stranger.is_closed
    assert_at_rest(stage, others)


def assert_at_rest(stage: Stage, others: list[Client]) -> None:
    """Nothing of the stranger is left in process, and the others are served."""
    node = stage.node
    assert node.window.in_process == 0
    assert node.window.in_process_bytes == 0
    assert node.gate.in_process == node.gate.buffered == 0
    assert node.input_budget.used_bytes == 0
    assert node.outbox_budget.used_bytes == 0
    assert node.journal.is_empty
    assert node.paused_count == 0
    for other in others:
        # A stranger may have used their names.
        if not other.is_closed:
            other.take()
            other.subscribe("x")
