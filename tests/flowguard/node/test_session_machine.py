"""Sessions against a simple model, with every possible fault between client and server.

Three clients publish to each other and to themselves through a whole node on virtual time. Peers
keep the rules of the standard (`support.peer`) but answer late, crash at any packet, reconnect with
or without their session, take over each other's connections, stop reading, lose what they sent. The
store commits late, one batch at a time, or the node is killed, before or after its last commit. The
window moves between 1 and 100; the CONNECT gate and the journal are as narrow as possible.

Invariants, at any moment:

1. No action of a legal client ends its connection.
2. First deliveries of one publisher, topic and QoS come in the order of publishing.
3. A QoS 2 message reaches the application of a session at most once; so does QoS 0.
4. A packet identifier stands for one message; on one connection a message is sent once.
5. No more messages are in flight to a client than its Receive Maximum.
6. No more packets of a client are in process than its window allowed when they were admitted.
7. Session Present is correct; nothing of QoS 1 and 2 is dropped.
8. Every budget of the node equals the sum of its objects, to the byte, for any budget in flight.

And once all clients are connected and read and answer, under any window:

9. Every message that was acknowledged to its publisher has reached every session it was owed.
10. Every exchange ends; identifiers, queues, windows and budgets are empty, in memory and in the
    store; and a node that starts over the same store has nothing left to send.
11. Once all sessions have ended, no budget holds anything.
"""

from collections.abc import Set
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow import Reason
from flowguard.records import is_group
from flowguard.session.inbound.packets import Inbound
from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore, Store
from flowguard.types import MQTT_5, MQTT_311, SESSION_NEVER_EXPIRES
from tests.flowguard.node.ledger import Ledger, check_budgets, end_all_sessions, used_bytes
from tests.support.peer import Peer
from tests.support.stage import Stage, StoreOnDisk

PEERS = st.integers(0, 2)
TOPICS = st.sampled_from(["t/0", "t/1"])
FILTERS = st.sampled_from(["t/0", "t/1", "t/#"])
QOS = st.sampled_from([2, 2, 1, 1, 0])
ROUNDS_MAX = 2_000


class Sessions(RuleBasedStateMachine):
    """See the module."""

    peer: type[Peer] = Peer
    queues: ClassVar[dict[str, Any]] = {}
    """Settings of them."""
    dropped: Set[Reason] = frozenset({Reason.OUTBOX_BYTES, Reason.NODE_OUTBOX_BYTES})
    """QoS 0 only."""

    @initialize(
        versions=st.lists(st.sampled_from([MQTT_5, MQTT_5, MQTT_311]), min_size=3, max_size=3),
        expiries=st.lists(
            st.sampled_from([SESSION_NEVER_EXPIRES, SESSION_NEVER_EXPIRES, 5, 0]),
            min_size=3,
            max_size=3,
        ),
        receive_maxima=st.lists(st.integers(1, 10), min_size=3, max_size=3),
        server_receive_maximum=st.integers(1, 20),
        inflight_max=st.integers(1, 10),
        connects=st.integers(1, 3),
        journal_ops=st.sampled_from([1, 8, 65_536]),
        inflight_bytes=st.sampled_from([2**28, 60_000, 2_000, 0]),
        subscribed=st.lists(st.tuples(FILTERS, QOS), min_size=3, max_size=3),
    )
    def node_starts(
        self,
        versions: list[int],
        expiries: list[int],
        receive_maxima: list[int],
        server_receive_maximum: int,
        inflight_max: int,
        connects: int,
        journal_ops: int,
        inflight_bytes: int,
        subscribed: list[tuple[str, int]],
    ) -> None:
        self.stage = Stage(
            {
                "flow": {"connects_in_process_max": connects, "journal_ops_max": journal_ops},
                "session": {
                    "receive_maximum": server_receive_maximum,
                    "inflight_max": inflight_max,
                    "outbox_bytes_max": 16 * 1024,
                    **self.queues,
                },
            },
            store=self.new_store(),
        )
        self.inflight_bytes = inflight_bytes
        self.narrow_the_flight()
        self.ledger = self.new_ledger()
        self.in_process: dict[Inbound, int] = {}
        self.limit_before = 100
        for index in range(3):
            expiry_s = expiries[index]
            if versions[index] != MQTT_5 and expiry_s:
                expiry_s = SESSION_NEVER_EXPIRES
            self.ledger.watch(
                self.peer(self.stage, f"c{index}", versions[index], expiry_s, receive_maxima[index])
            )
        self.peers = self.ledger.peers
        for index, (filter, qos) in enumerate(subscribed):
            self.subscribe(index, filter, qos)
            self.peers[index].receive()

    def new_store(self) -> Store:
        return MemoryStore()

    def store_forgets(self) -> None:
        """Lose the data that a store may lose in a crash."""

    def new_ledger(self) -> Ledger:
        return Ledger()

    def narrow_the_flight(self) -> None:
        """Below what a setting may be."""
        self.stage.node.state.inflight.budget.limit_bytes = self.inflight_bytes

    def awake(self, index: int) -> Peer | None:
        """The peer, if it is online or can be at once."""
        peer = self.peers[index]
        if peer.wire is None:
            peer.connect()
        if not peer.online:
            peer.receive()
        return peer if peer.online else None

    # --- connections -------------------------------------------------------------------------

    @rule(index=PEERS, clean=st.sampled_from([False, False, False, True]))
    def connect_or_take_over(self, index: int, clean: bool) -> None:
        self.peers[index].connect(clean=clean)

    @rule(index=PEERS, cut=st.none() | st.integers(1, 12), topic=TOPICS)
    def crash(self, index: int, cut: int | None, topic: str) -> None:
        """Between packets, or `cut` bytes into a PUBLISH."""
        peer = self.peers[index]
        begun = b""
        if cut is not None and peer.online and peer.uplink:
            begun = (b"\x32\x80\x01\x00\x03" + topic.encode() + b"\x12\x34\x00half")[:cut]
        peer.close(begun)

    @rule(index=PEERS, expiry_s=st.sampled_from([None, None, 0, 5]))
    def disconnect(self, index: int, expiry_s: int | None) -> None:
        peer = self.awake(index)
        if peer is None:
            return
        if peer.version != MQTT_5 or not peer.expiry_s:
            expiry_s = None
        peer.disconnect(expiry_s)
        if expiry_s:
            # For this absence only: the next CONNECT asks for the old interval again.
            peer.expiry_s, usual = expiry_s, peer.expiry_s
            peer.time_passed()
            peer.expiry_s = usual

    @rule(index=PEERS)
    def cut_uplink(self, index: int) -> None:
        self.peers[index].cut_uplink()

    @rule(index=PEERS, reads=st.booleans())
    def stop_or_go_on_reading(self, index: int, reads: bool) -> None:
        peer = self.awake(index)
        if peer is not None and peer.wire is not None:
            if reads:
                peer.wire.read_again()
            else:
                peer.wire.reads = False

    # --- packets -----------------------------------------------------------------------------

    @rule(index=PEERS, count=st.sampled_from([1, 2, 100]))
    def receive(self, index: int, count: int) -> None:
        self.peers[index].receive(count)

    @rule(index=PEERS, everything=st.booleans(), choice=st.integers(0, 5))
    def acknowledge(self, index: int, everything: bool, choice: int) -> None:
        peer = self.awake(index)
        if peer is not None:
            peer.acknowledge(everything=everything, choice=choice)

    @rule(index=PEERS, packets_count=st.integers(1, 30))
    def converse(self, index: int, packets_count: int) -> None:
        """Receive and answer without delay, up to anywhere in an exchange."""
        peer = self.awake(index)
        while peer is not None and packets_count and peer.receive():
            peer.acknowledge(everything=True)
            packets_count -= 1

    @rule(index=PEERS, filter=FILTERS, qos=QOS)
    def subscribe(self, index: int, filter: str, qos: int) -> None:
        peer = self.awake(index)
        if peer is not None:
            self.ledger.subscription_changes(peer, filter)
            peer.subscribe(filter, qos)

    @rule(index=PEERS, filter=FILTERS)
    def unsubscribe(self, index: int, filter: str) -> None:
        peer = self.awake(index)
        if peer is not None:
            self.ledger.subscription_changes(peer, filter)
            peer.unsubscribe(filter)

    @rule(
        index=PEERS,
        topic=TOPICS,
        qos=QOS,
        count=st.sampled_from([3, 1, 12]),
        size_bytes=st.sampled_from([0, 0, 0, 20_000]),
    )
    def publish(self, index: int, topic: str, qos: int, count: int, size_bytes: int) -> None:
        peer = self.awake(index)
        if peer is not None:
            count = min(count, peer.may_publish) if qos else count
            messages = [
                self.ledger.message(peer, topic, qos, size_bytes if qos else 0)
                for _ in range(count)
            ]
            peer.publish(*messages)

    # --- the node and its store --------------------------------------------------------------

    @rule()
    def store_becomes_slow(self) -> None:
        self.stage.hold_commits = True

    @rule()
    def store_becomes_quick(self) -> None:
        self.stage.release_commits()

    @rule()
    def slow_store_finishes_one_batch(self) -> None:
        self.stage.finish_commit()

    @rule(committed=st.booleans())
    def kill_and_restart(self, committed: bool) -> None:
        """The last batch was on disk, or not; no client got an answer in either case."""
        stage = self.stage
        if committed and stage.held is not None:
            stage.store.commit(stage.held.ops)
        for peer in self.peers:
            peer.lost()
        self.store_forgets()
        stage.restart()
        self.narrow_the_flight()
        self.in_process.clear()

    @rule(limit=st.sampled_from([1, 2, 5, 100]))
    def window_moves(self, limit: int) -> None:
        self.stage.node.guard.window.resize(limit)

    @rule(seconds=st.sampled_from([0.2, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.stage.advance(seconds)
        for peer in self.peers:
            peer.time_passed()

    # --- what holds --------------------------------------------------------------------------

    @invariant()
    def nobody_exceeds_a_limit(self) -> None:
        if not hasattr(self, "stage"):
            return
        node = self.stage.node
        for peer in self.peers:
            peer.check(node.settings.session.inflight_max)
        assert set(node.counters.dropped) <= self.dropped
        check_budgets(node, [p.wire.connection for p in self.peers if p.wire is not None])
        limit = max(self.limit_before, node.guard.window.limit)
        self.limit_before = node.guard.window.limit
        # One packet is always possible: one that writes to the queues of all and of two groups.
        heaviest = node.router.cost.of(0, 0, len(self.peers) + 2)
        before, self.in_process = self.in_process, {}
        for session in node.registry.sessions.values():
            inbound = session.outbound and session.outbound.connection.inbound
            if inbound is not None:
                now = inbound.window.in_process
                assert now <= max(before.get(inbound, 0), limit, heaviest)
                self.in_process[inbound] = now

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.bring_everybody_back()
            assert not self.ledger.missing()
            self.nothing_is_left()
            self.nothing_comes_after_a_restart()

    def bring_everybody_back(self) -> None:
        self.stage.release_commits()
        for peer in self.peers:
            if peer.wire is None or not peer.online or not peer.uplink:
                peer.connect()
            assert peer.wire is not None
            if not peer.wire.reads:
                peer.wire.read_again()
        for _ in range(ROUNDS_MAX):
            moved = [bool(p.receive(100)) | p.acknowledge(everything=True) for p in self.peers]
            self.nobody_exceeds_a_limit()
            if not any(moved):
                return
        raise AssertionError("the exchange never ends")

    def nothing_is_left(self) -> None:
        node, store = self.stage.node, self.stage.store
        assert node.journal.is_empty
        assert (node.guard.gate.in_process, node.guard.gate.buffered) == (0, 0)
        assert node.state.paused_count == 0
        used = used_bytes(node)
        del used["state"]  # Subscriptions, and long client ids.
        assert used == dict.fromkeys(used, 0)
        for peer in self.peers:
            assert peer.online
            assert not peer.unacked
            assert not peer.in_use
            assert not peer.asked
            session = node.registry.sessions[peer.client_id]
            assert not session.inflight.messages
            assert not session.queue.count
            assert not session.inbound_ids
            assert set(peer.subscriptions) <= set(session.subscriptions)
            assert session.outbound is not None
            assert session.outbound.connection.inbound is not None
            assert session.outbound.connection.inbound.window.in_process == 0
            assert session.outbound.outbox.size_bytes == 0
            assert store.fetch(peer.client_id, 0, 10) == []
        durable = {name: s for name, s in node.registry.sessions.items() if s.durable}
        stored = {record.client_id: record for record in store.sessions()}
        records = {name: record for name, record in stored.items() if not is_group(name)}
        assert records.keys() == durable.keys()
        queues = {queue.client_id for queue in node.router.queues._queues.values()}
        assert stored.keys() - records.keys() == queues
        assert all(not record.unsettled_count for record in stored.values())
        for name, record in records.items():
            assert record.subscriptions == dict(durable[name].subscriptions.items())
            assert not record.inbound_ids

    def nothing_comes_after_a_restart(self) -> None:
        for peer in self.peers:
            peer.lost()
        self.stage.restart()
        for peer in self.peers:
            peer.connect()
            assert peer.receive(100) == 1
        assert not self.stage.node.counters.publish_sent
        end_all_sessions(self.stage.node, self.stage.now_s)


class SessionsOnDisk(Sessions):
    """`Sessions` over a store on disk, with memory for two messages per client."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(backlog, "HERE_MAX", 2)
        self.patch.setattr(backlog, "PAGE_MAX", 3)

    def new_store(self) -> Store:
        return StoreOnDisk()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


class FullQueues(Sessions):
    """`Sessions` with publishers that wait for capacity in the smallest of queues."""

    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 1, "block_s": 1e9}


class FullQueuesOnDisk(SessionsOnDisk):
    """`FullQueues` with a store on disk."""

    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 3, "block_s": 1e9}


TestSessions = Sessions.TestCase
TestSessionsOnDisk = SessionsOnDisk.TestCase
TestFullQueues = FullQueues.TestCase
TestFullQueuesOnDisk = FullQueuesOnDisk.TestCase
# Most likely to find unexpected faults: it gets more examples than others, and `make soak` draws
# new ones for hours.
TestSessions.settings = settings(
    stateful_step_count=100, max_examples=2 * settings.default.max_examples
)
TestFullQueues.settings = settings(stateful_step_count=100)
TestSessionsOnDisk.settings = TestFullQueuesOnDisk.settings = settings(
    stateful_step_count=100, max_examples=settings.default.max_examples // 2
)
