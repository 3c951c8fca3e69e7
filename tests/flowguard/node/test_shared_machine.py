"""Shared subscriptions against the rules of 4.8.2: members come, go, answer late, or end.

The machine of `test_session_machine`, every invariant of it, with the same three clients in two
groups, one per topic. In a crash the store in memory loses every `Settle` and `Sent` that its
contract allows; the durable one, in each of its layouts, those that it does lose. Additionally, for
the messages of a group:

1. A message acknowledged to its publisher while a durable session was certainly a member has
   entered the queue of its group.
2. A message that has entered the queue reaches the application of one member at least, unless the
   group has ended, or it was sent at QoS 2 to a member whose session has ended ([MQTT-4.8.2-5]), or
   at QoS 0.
3. At QoS 2 it reaches the application of one member at most, and once; so at QoS 0.
4. In the end nothing waits anywhere; the store has a queue for every group that has one, empty.

And if all of them are in one group, at QoS 2, and stay in it:

5. Messages reach a member at QoS 2 in the order of their publisher and topic, unless they may have
   been in flight to a member whose session ended.
6. A packet identifier of QoS 1 that ended with its connection, or a crash, does not come back with
   another message.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from flowguard.config import StoreSettings
from flowguard.flow import Reason
from flowguard.records import (
    QOS_1_IDS,
    Append,
    Delivery,
    DropSession,
    Durability,
    Release,
    Sent,
    Settle,
    StoreOp,
    is_group,
)
from flowguard.session.outbound import backlog
from flowguard.stores import Fenced, MemoryStore, Store
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import Ledger
from tests.flowguard.node.test_session_machine import PEERS, QOS, TOPICS, Sessions
from tests.support.peer import Member, Peer

TWO_GROUPS = {"t/0": "$share/g/t/0", "t/1": "$share/h/t/1", "t/#": "$share/g/t/0"}
ONE_GROUP = dict.fromkeys(TWO_GROUPS, "$share/g/t/#")
LENT_IDS = range(QOS_1_IDS // 2, QOS_1_IDS + 1)
"""Packet identifiers of what groups lend; those of a client's own messages come from below."""
FILTERS = st.sampled_from(["$share/g/t/0", "$share/h/t/1"])


class Witness:
    """The fate of the messages of groups, by the operations that a store got."""

    def __init__(self) -> None:
        self.entered: set[bytes] = set()
        """Payloads that were appended to the queue of a group."""
        self.let_go: set[bytes] = set()
        """Messages without a receiver, to a session that is not stored, or that ended with their
        owner."""
        self.ends = 0
        """Number of queues of groups that have ended."""

    def see(self, ops: Sequence[StoreOp], store: Store) -> None:
        """`ops` are about to be committed to `store`."""
        appended = [op for op in ops if isinstance(op, Append)]
        moved = {payload_of(op.delivery) for op in appended if not is_group(op.client_id)}
        for op in ops:
            if isinstance(op, Append) and is_group(op.client_id):
                self.entered.add(payload_of(op.delivery))
            elif isinstance(op, Release) and is_group(op.client_id):
                self.let_go |= {payload_of(op.delivery)} - moved
            elif isinstance(op, DropSession):
                self.ends += is_group(op.client_id)
                entries = store.fetch(op.client_id, 0, 10**6, bytes_max=10**9)
                self.let_go |= {payload_of(each.delivery) for each in entries if each.delivery}
                mine = [each for each in appended if each.client_id == op.client_id]
                self.let_go |= {payload_of(each.delivery) for each in mine}


def payload_of(delivery: Delivery | None) -> bytes:
    assert delivery is not None
    return delivery.message.payload


class ForgetfulStore(MemoryStore):
    """Loses in a crash whatever it may."""

    def __init__(self, *, on_disk: bool = False) -> None:
        super().__init__()
        self.on_disk = on_disk
        self.witness = Witness()
        self.log: list[StoreOp] = []
        """Operations that a crash does not undo."""

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.witness.see(ops, self)
        self.log += [op for op in ops if not isinstance(op, Settle | Sent)]
        return super().commit(ops)

    def crash(self) -> None:
        self._sessions.clear()
        self._queues.clear()
        self._retained.clear()
        super().commit(self.log)

    def forget(self) -> None:
        """Nothing to remove."""


class CrashingRocks:
    """A RocksStore, which a crash closes no better than the death of its process."""

    durability = Durability.OS
    immediate = False
    on_disk = True

    def __init__(self, layout: Literal["window", "status"]) -> None:
        self.witness = Witness()
        self._settings = StoreSettings(layout=layout, durability="os", disk_reserve_bytes=0)
        self._folder = Path(tempfile.mkdtemp(prefix="flowguard-shared-"))
        self._open()

    def _open(self) -> None:
        self._store = RocksStore(
            self._folder, self._settings, wall_s=lambda: 1.7e9, random_node=lambda: 7
        )
        self.sessions = self._store.sessions
        self.retained = self._store.retained
        self.fetch = self._store.fetch
        self.maintain = self._store.maintain
        self.backup = self._store.backup
        self.load = self._store.load
        self.close = self._store.close

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.witness.see(ops, self)
        return self._store.commit(ops)

    def crash(self) -> None:
        self._store._engine.close()
        self._open()

    def forget(self) -> None:
        """Remove the store at the end of the test."""
        self._store._engine.close()
        shutil.rmtree(self._folder)


@dataclass(eq=False)
class Remembering(Member):
    """Does not forget what its identifiers of QoS 1 stood for."""

    former: dict[int, bytes] = field(default_factory=dict)

    def _leave(self) -> None:
        self.former |= {each: text for each, text in self.in_use.items() if each in LENT_IDS}
        super()._leave()

    def _on_publish(self, packet: Publish) -> None:
        former = self.former.get(packet.packet_id, packet.payload)
        assert former == packet.payload, "a former packet identifier stands for another message"
        super()._on_publish(packet)


class SharedLedger(Ledger):
    """The messages owed to whole groups."""

    def __init__(self, witness: Witness, groups: dict[str, str]) -> None:
        super().__init__()
        self.groups = groups
        self.witness = witness
        self.certain: set[bytes] = set()
        """Payloads whose group has had a durable member for certain ever since they were sent."""
        self.got: set[bytes] = set()
        self.ended: set[bytes] = set()
        """Payloads that reached a member at QoS 2 or 0, and go no further."""

    def message(self, publisher: Peer, topic: str, qos: int, size_bytes: int = 0) -> Publish:
        publish = super().message(publisher, topic, qos, size_bytes)
        if qos and self.has_member(topic):
            self.certain.add(publish.payload)
        return publish

    def has_member(self, topic: str) -> bool:
        """A durable session is in the group for certain, and was granted QoS 1 or 2."""
        filter = self.groups[topic]
        return any(
            peer.is_durable and peer.is_sure_of_session and peer.subscriptions.get(filter)
            for peer in self.peers
        )

    def members_change(self) -> None:
        for topic in self.groups:
            if not self.has_member(topic):
                messages = [self.messages[payload] for payload in self.certain]
                self.certain -= {each.payload for each in messages if each.publish.topic == topic}

    def acknowledged(self, peer: Peer, publish: Publish) -> None:
        super().acknowledged(peer, publish)
        assert publish.payload in self.witness.entered or publish.payload not in self.certain

    def delivered(self, peer: Peer, publish: Publish) -> None:
        super().delivered(peer, publish)
        payload = publish.payload
        self.got.add(payload)
        if publish.qos != 1 and self.messages[payload].publish.qos == 2:
            assert payload not in self.ended, "a QoS 2 message reached two"
            self.ended.add(payload)


class OrderedLedger(SharedLedger):
    """A ledger of one group at QoS 2."""

    def __init__(self, witness: Witness, groups: dict[str, str]) -> None:
        super().__init__(witness, groups)
        self.returnable: set[bytes] = set()
        """Payloads that may have been on their way to a session that ended."""
        self.last: dict[tuple[str, int, str, str], int] = {}

    def session_lost(self, peer: Peer) -> None:
        super().session_lost(peer)
        self.returnable |= self.messages.keys() - self.got

    def delivered(self, peer: Peer, publish: Publish) -> None:
        super().delivered(peer, publish)
        message = self.messages[publish.payload]
        if publish.qos != 2 or publish.payload in self.returnable:
            return
        line = peer.client_id, peer.life, message.publisher, publish.topic
        assert message.number > self.last.get(line, 0), "delivered out of order"
        self.last[line] = message.number


class SharedSessions(Sessions):
    """See the module."""

    filters: ClassVar = TWO_GROUPS
    ledger_type: ClassVar[type[SharedLedger]] = SharedLedger
    peer = Member
    dropped = Sessions.dropped | {Reason.OFFLINE_QOS_0}

    def new_store(self) -> Store:
        self.store = self.a_store()
        return self.store

    def a_store(self) -> ForgetfulStore | CrashingRocks:
        return ForgetfulStore()

    def new_ledger(self) -> Ledger:
        self.groups = self.ledger_type(self.store.witness, self.filters)
        return self.groups

    def store_forgets(self) -> None:
        self.store.crash()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "store"):
                self.store.forget()

    @rule(index=PEERS, filter=FILTERS, qos=QOS)
    def subscribe(self, index: int, filter: str, qos: int) -> None:
        """The first ones, which name a topic, are made shared."""
        super().subscribe(index, self.filters.get(filter, filter), qos)

    @rule(index=PEERS, filter=FILTERS)
    def unsubscribe(self, index: int, filter: str) -> None:
        super().unsubscribe(index, filter)

    @rule(
        publisher=PEERS,
        topic=TOPICS,
        qos=st.sampled_from([2, 2, 1]),
        batches=st.integers(0, 4),
        index=PEERS,
        event=st.sampled_from(["crash", "end", "unsubscribe", "take over", "kill"]),
    )
    def something_happens_on_the_way(
        self, publisher: int, topic: str, qos: int, batches: int, index: int, event: str
    ) -> None:
        """An event for a member with capacity, after `batches` commits of messages to it."""
        self.store_becomes_quick()
        self.subscribe(index, self.filters[topic], qos)
        self.converse(index, 30)
        self.store_becomes_slow()
        self.publish(publisher, topic, qos, count=3, size_bytes=0)
        for _ in range(batches):
            self.slow_store_finishes_one_batch()
        match event:
            case "crash":
                self.crash(index, None, topic)
            case "end":
                self.disconnect(index, 0)
            case "unsubscribe":
                self.unsubscribe(index, self.filters[topic])
            case "take over":
                self.connect_or_take_over(index, clean=False)
            case "kill":
                self.kill_and_restart(committed=bool(batches % 2))

    @invariant()
    def members_change(self) -> None:
        if hasattr(self, "stage"):
            self.groups.members_change()

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        witness = self.store.witness
        missing = witness.entered - witness.let_go - self.groups.got
        assert not missing


class OneGroup(SharedSessions):
    """All in one group at QoS 2."""

    peer = Remembering
    filters: ClassVar = ONE_GROUP
    ledger_type = OrderedLedger

    @rule(index=PEERS, filter=FILTERS, qos=QOS)
    def subscribe(self, index: int, filter: str, qos: int) -> None:
        super().subscribe(index, "t/#", 2)

    @rule(index=PEERS, filter=FILTERS)
    def unsubscribe(self, index: int, filter: str) -> None:
        """They stay."""

    @invariant()
    def a_group_that_begins_anew_begins_with_the_first_identifier(self) -> None:
        if hasattr(self, "store") and self.ends != self.store.witness.ends:
            self.ends = self.store.witness.ends
            for peer in self.peers:
                assert isinstance(peer, Remembering)
                peer.former.clear()

    ends = 0


class SharedSessionsOnDisk(SharedSessions):
    """`SharedSessions` over a store on disk, with memory for two messages per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(backlog, "HERE_MAX", 2)
        self.patch.setattr(backlog, "PAGE_MAX", 3)

    def a_store(self) -> ForgetfulStore | CrashingRocks:
        return ForgetfulStore(on_disk=True)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


class SharedSessionsOnRocks(SharedSessionsOnDisk):
    """Over the durable store."""

    def a_store(self) -> ForgetfulStore | CrashingRocks:
        return CrashingRocks("window")


class SharedSessionsOnRocksByStatus(SharedSessionsOnDisk):
    """Over its other layout."""

    def a_store(self) -> ForgetfulStore | CrashingRocks:
        return CrashingRocks("status")


class FullSharedQueues(SharedSessions):
    """`SharedSessions` with publishers that wait for capacity in the smallest of queues.

    No publisher waits for messages that a leaving member hands on: a full queue drops them.
    """

    dropped = SharedSessions.dropped | {Reason.QUEUE_MESSAGES}
    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 1, "block_s": 1e9}


class FullSharedQueuesOnDisk(SharedSessionsOnDisk):
    """`FullSharedQueues` with a store on disk."""

    dropped = FullSharedQueues.dropped
    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 3, "block_s": 1e9}


TestSharedSessions = SharedSessions.TestCase
TestSharedSessionsOnDisk = SharedSessionsOnDisk.TestCase
TestOneGroup = OneGroup.TestCase
TestSharedSessions.settings = TestOneGroup.settings = settings(stateful_step_count=100)
TestSharedSessionsOnDisk.settings = settings(
    stateful_step_count=100, max_examples=settings.default.max_examples // 2
)
TestFullSharedQueues = FullSharedQueues.TestCase
TestFullSharedQueuesOnDisk = FullSharedQueuesOnDisk.TestCase
TestSharedSessionsOnRocks = SharedSessionsOnRocks.TestCase
TestSharedSessionsOnRocksByStatus = SharedSessionsOnRocksByStatus.TestCase
TestFullSharedQueues.settings = settings(stateful_step_count=100)
TestFullSharedQueuesOnDisk.settings = settings(
    stateful_step_count=100, max_examples=settings.default.max_examples // 2
)
# The stores have a machine of their own.
TestSharedSessionsOnRocks.settings = TestSharedSessionsOnRocksByStatus.settings = settings(
    stateful_step_count=100, max_examples=max(1, settings.default.max_examples // 5)
)
