"""Control packets that a window must not delay, block or reorder."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowguard.codec.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flowguard.config import PolicyName
from flowguard.types import MQTT_5, MQTT_311, SESSION_NEVER_EXPIRES, Publish, SubscriptionOptions
from tests.flowguard.node.accounts import Account, Bank
from tests.support.peer import Peer
from tests.support.stage import Client, Stage

EXAMPLES = settings.default.max_examples
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
PRESSED_S = 1.6
"""Age of a replication: sixteen times its objective, which is the most that pressure can be."""
KEEP_ALIVE_S = 2
ROUNDS_MAX = 500


# --- 05: control packets -------------------------------------------------------------------------


class ControlPackets(RuleBasedStateMachine):
    """A client floods a node in distress, with control packets between; it keeps its keep-alive.

    Control packets that the node has read are answered in the same settle, without time passing.
    """

    @initialize(
        policy=st.sampled_from(POLICIES),
        window_max=st.sampled_from([1, 3, 10]),
        unfinished=st.sampled_from([2, 4_096]),
        version=st.sampled_from([MQTT_311, MQTT_5]),
    )
    def starts(self, policy: PolicyName, window_max: int, unfinished: int, version: int) -> None:
        flow = {
            "policy": policy,
            "window_max": window_max,
            "unfinished_max": unfinished,
            "cost_bytes": 1_000,
        }
        self.stage = stage = Stage({"flow": flow})
        stage.connect_durable("s", version=MQTT_311).subscribe("t", qos=1)
        client = stage.connect("c", version=version, keep_alive_s=KEEP_ALIVE_S)
        client.subscribe("own/#", qos=2)
        self.other = stage.connect("other")
        for number in range(6):
            self.other.publish(f"own/{number}", b"", qos=1 + number % 2)
        self.owed = [packet for packet in client.take() if isinstance(packet, Publish)]
        assert len(self.owed) == 6
        stage.node.guard.observer.replication(PRESSED_S)
        stage.hold_commits = True
        self.session = stage.node.registry.sessions["c"]
        self.bank = Bank(stage)
        self.account = Account(client, version)
        self.bank.accounts.append(self.account)
        self.may_publish = client.connack.properties.receive_maximum or 65_535
        self.written_bytes = 0
        self.sent_s = stage.now_s
        self.pings: list[int] = []
        """Where in the stream each ends."""
        self.acks: list[tuple[int, int, int]] = []
        """Acknowledgements: end in the stream, QoS, packet identifier."""
        self.pongs = 0
        self.released: set[int] = set()

    def write(self, *packets: Packet) -> None:
        before = len(self.account.unread)
        self.account.write(*packets)
        self.written_bytes += len(self.account.unread) - before
        self.sent_s = self.stage.now_s

    def ping(self) -> None:
        self.write(Pingreq())
        self.pings.append(self.written_bytes)

    def acknowledge(self) -> None:
        packet = self.owed.pop(0)
        self.write((Puback if packet.qos == 1 else Pubrec)(packet.packet_id))
        self.acks.append((self.written_bytes, packet.qos, packet.packet_id))

    @rule(
        count=st.sampled_from([1, 1, 2, 30]),
        size_bytes=st.sampled_from([0, 2_500, 9_500, 200_000]),
        then=st.lists(st.sampled_from(["ping", "acknowledge"]), max_size=4),
    )
    def flood(self, count: int, size_bytes: int, then: list[str]) -> None:
        """PUBLISH, and control packets right behind them, in the same chunk."""
        for _ in range(min(count, self.may_publish, 4 if size_bytes > 100_000 else count)):
            self.may_publish -= 1
            packet_id = self.account.client.next_packet_id()
            self.write(Publish("t", bytes(size_bytes), 1, packet_id=packet_id))
        for each in then:
            if each == "ping":
                self.ping()
            elif self.owed:
                self.acknowledge()
        self.bank_reads()

    @rule()
    def pings_alone(self) -> None:
        self.ping()
        self.bank_reads()

    @precondition(lambda self: self.owed)
    @rule()
    def acknowledges_alone(self) -> None:
        self.acknowledge()
        self.bank_reads()

    @rule()
    def store_finishes_a_batch(self) -> None:
        self.stage.finish_commit()
        self.bank_reads()

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        """The client sends a packet within its keep-alive, even if the node does not read it."""
        for _ in range(round(10 * seconds)):
            self.stage.advance(0.1)
            if self.stage.now_s - self.sent_s >= KEEP_ALIVE_S - 0.05:
                self.ping()
            self.bank_reads()

    def bank_reads(self) -> None:
        self.bank.read_sockets()
        for packet in self.account.client.take():
            if isinstance(packet, Pingresp):
                self.pongs += 1
            elif isinstance(packet, Pubrel):
                self.released.add(packet.packet_id)
            elif isinstance(packet, Puback):
                self.may_publish += 1

    @precondition(lambda self: hasattr(self, "bank"))
    @invariant()
    def control_packets_are_served_at_once(self) -> None:
        assert not self.account.client.is_closed, "cut off for silence that is not its own"
        read_bytes = self.written_bytes - len(self.account.unread)
        assert self.pongs == sum(end <= read_bytes for end in self.pings)
        for end, qos, packet_id in self.acks:
            if end > read_bytes:
                continue
            if qos == 1:
                assert packet_id not in self.session.inflight.messages
            else:
                assert packet_id in self.released


def test_invariant_05_control_packets_are_served_at_once_at_any_pressure() -> None:
    run_state_machine_as_test(
        ControlPackets, settings=settings(max_examples=EXAMPLES // 2, stateful_step_count=20)
    )


# --- 06: no deadlock -----------------------------------------------------------------------------


class OwnSubscription(RuleBasedStateMachine):
    """Clients publish to what they subscribe to, one packet at a time in each direction.

    3.1.1 knows no Receive Maximum for the server: its clients do not wait, but are made to.
    """

    @initialize(
        clients=st.integers(1, 3),
        version=st.sampled_from([MQTT_311, MQTT_5]),
        durable=st.booleans(),
        unfinished=st.sampled_from([1, 4_096]),
        floor=st.sampled_from([0.2, 1.0]),
    )
    def starts(
        self, clients: int, version: int, durable: bool, unfinished: int, floor: float
    ) -> None:
        self.stage = stage = Stage(
            {
                "flow": {"window_max": 1, "window_floor": floor, "unfinished_max": unfinished},
                "session": {"receive_maximum": 1, "inflight_max": 1},
            }
        )
        self.delivered = 0
        self.owed = 0
        self.peers = []
        for number in range(clients):
            peer = Peer(stage, f"c{number}", version, SESSION_NEVER_EXPIRES if durable else 0, 1)
            peer.on_delivered = self.count
            peer.connect()
            peer.receive()
            peer.subscribe("own", 2)
            peer.receive()
            assert peer.subscriptions
            assert peer.server_receive_maximum == (1 if version == MQTT_5 else 65_535)
            self.peers.append(peer)
        stage.node.guard.observer.replication(PRESSED_S)
        stage.hold_commits = True

    def count(self, peer: Peer, packet: Publish) -> None:
        self.delivered += 1

    @rule(which=st.integers(0, 2), qos=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=4))
    def publish(self, which: int, qos: list[int]) -> None:
        peer = self.peers[which % len(self.peers)]
        allowed = qos[: peer.may_publish]
        if allowed:
            peer.publish(*[Publish("own", b"%d" % self.owed, each) for each in allowed])
            self.owed += len(allowed) * len(self.peers)

    @rule(which=st.integers(0, 2))
    def receive(self, which: int) -> None:
        self.peers[which % len(self.peers)].receive()

    @rule(which=st.integers(0, 2), choice=st.integers(0, 2))
    def acknowledge(self, which: int, choice: int) -> None:
        self.peers[which % len(self.peers)].acknowledge(choice=choice)

    @rule()
    def store_finishes_a_batch(self) -> None:
        self.stage.finish_commit()

    @rule()
    def time_passes(self) -> None:
        self.stage.advance(0.2)

    @precondition(lambda self: hasattr(self, "peers"))
    @invariant()
    def nobody_exceeds_a_limit(self) -> None:
        for peer in self.peers:
            peer.check(self.stage.node.settings.session.inflight_max)
            inbound = peer.wire.connection.inbound if peer.wire is not None else None
            assert inbound is not None
            assert inbound.window.in_process <= 1

    def teardown(self) -> None:
        """From now on all sides answer, in turns, and all exchanges end."""
        if not hasattr(self, "peers"):
            return
        for _ in range(ROUNDS_MAX):
            moved = [bool(p.receive()) | p.acknowledge() for p in self.peers]
            if not any(moved) and not self.stage.finish_commit():
                break
        assert self.delivered == self.owed
        for peer in self.peers:
            assert not peer.unacked
            assert not peer.in_use


def test_who_publishes_to_its_own_subscription_one_by_one_gets_on() -> None:
    run_state_machine_as_test(
        OwnSubscription, settings=settings(max_examples=EXAMPLES // 2, stateful_step_count=30)
    )


# --- 13: order -----------------------------------------------------------------------------------


@dataclass
class Seen:
    """The client's view of one run of a script."""

    answers: dict[int, list[tuple[type[Packet], int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """PUBACK, PUBREC and SUBACK of each publisher."""
    completions: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Its PUBCOMP."""
    delivered: dict[tuple[str, bytes, bool], list[bytes]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By topic, publisher, and whether it is QoS 0, which no queue holds up."""


Step = tuple[int, list[tuple[int, str, int]]]
"""One publisher sends PUBLISH (QoS, topic, bytes) in one chunk; QoS 3: a SUBSCRIBE."""
SCRIPTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(
            st.tuples(
                st.sampled_from([1, 1, 2, 0, 3]),
                st.sampled_from(["durable", "plain"]),
                st.sampled_from([0, 0, 900]),
            ),
            min_size=1,
            max_size=10,
        ),
    ),
    min_size=1,
    max_size=8,
)
WINDOWS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=8, max_size=8)
"""Before each step: the window, and whether the store finishes a batch."""


def play(script: list[Step], windows: list[tuple[int, bool]], unfinished: int) -> Seen:
    """Run the script under these windows, then let everything come to its end."""
    flow = {"window_max": 12, "unfinished_max": unfinished, "cost_bytes": 300}
    stage = Stage({"flow": flow})
    subscribers = [stage.connect_durable("d", version=MQTT_311), stage.connect("p")]
    for subscriber, filter in zip(subscribers, ("durable", "+"), strict=True):
        subscriber.subscribe(filter, qos=2)
    publishers = [stage.connect(f"c{number}", version=MQTT_311) for number in range(3)]
    stage.hold_commits = True
    seen = Seen()
    number = 0
    for (which, packets), (limit, commits) in zip(script, windows, strict=False):
        stage.node.guard.window.resize(limit)
        if commits:
            stage.finish_commit()
        publishers[which].send(*chunk_of(publishers[which], which, number, packets))
        number += len(packets)
        look(publishers, seen)
    while stage.finish_commit() or any(publisher.inbox for publisher in publishers):
        look(publishers, seen)
    for name, subscriber in zip("dp", subscribers, strict=True):
        for packet in subscriber.publishes(acknowledge=False):
            which_bytes, number_bytes, _ = packet.payload.split(b" ", 2)
            key = (name + packet.topic, which_bytes, packet.qos == 0)
            seen.delivered[key].append(number_bytes)
    return seen


def chunk_of(
    publisher: Client, which: int, number: int, packets: list[tuple[int, str, int]]
) -> list[Packet]:
    """One step's packets; payloads tell publisher and number."""
    chunk: list[Packet] = []
    for each, (qos, topic, size_bytes) in enumerate(packets, number):
        packet_id = publisher.next_packet_id() if qos else 0
        if qos == 3:
            chunk.append(Subscribe(packet_id, (("z", SubscriptionOptions(1)),)))
        else:
            payload = b"%d %d " % (which, each) + bytes(size_bytes)
            chunk.append(Publish(topic, payload, qos, packet_id=packet_id))
    return chunk


def look(publishers: list[Client], seen: Seen) -> None:
    """Note what has come, and answer PUBREC."""
    for index, publisher in enumerate(publishers):
        for packet in publisher.take():
            if isinstance(packet, Puback | Pubrec | Suback):
                seen.answers[index].append((type(packet), packet.packet_id))
            if isinstance(packet, Pubrec):
                publisher.send(Pubrel(packet.packet_id))
            elif isinstance(packet, Pubcomp):
                seen.completions[index].append(packet.packet_id)


@given(SCRIPTS, WINDOWS, st.sampled_from([2, 4_096]))
def test_order_does_not_depend_on_the_window(
    script: list[Step], windows: list[tuple[int, bool]], unfinished: int
) -> None:
    wide = play(script, [(12, False)] * 8, 4_096)
    assert play(script, windows, unfinished) == wide
    assert all(numbers == sorted(numbers, key=int) for numbers in wide.delivered.values())


# --- found with these ----------------------------------------------------------------------------


def test_what_follows_qos_0_in_a_chunk_has_all_the_room_there_is() -> None:
    stage = Stage({"flow": {"window_max": 3}})
    stage.connect_durable("s", version=MQTT_311).subscribe("t", qos=1)
    client = stage.connect("c", version=MQTT_311)
    stage.hold_commits = True
    counted = [Publish("t", b"", 1, packet_id=number) for number in range(1, 7)]
    client.send(Publish("t", b""), Publish("t", b""), *counted)
    assert stage.node.guard.window.in_process == 3
