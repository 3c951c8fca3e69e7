"""Shared subscriptions against the rules of 4.8.2: members come, go, answer late, or end.

The machine of `test_session_machine`, every invariant of it, with the same three clients in two
groups, one per topic. The store keeps to the letter of its contract: in a crash it loses whatever
`Settle` and `Sent` it may. Besides, for the messages of a group:

1. What was acknowledged to its publisher while a durable session was a member for certain has
   entered the queue of its group.
2. What has entered the queue reaches the application of one member at least, unless the group has
   ended, or it was sent at QoS 2 to a member whose session has ended ([MQTT-4.8.2-5]), or at QoS 0.
3. At QoS 2 it reaches the application of one member at most, and once; so at QoS 0.
4. In the end nothing waits anywhere; the store has a queue for every group that has one, empty.
"""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from flowguard.flow import Reason
from flowguard.records import (
    Append,
    DropSession,
    Release,
    Sent,
    Settle,
    StoreOp,
    is_group,
)
from flowguard.session import backlog
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.flowguard.node.ledger import Ledger
from tests.flowguard.node.test_session_machine import PEERS, QOS, TOPICS, Sessions
from tests.support.peer import Peer

GROUPS = {"t/0": "$share/g/t/0", "t/1": "$share/h/t/1", "t/#": "$share/g/t/0"}
FILTERS = st.sampled_from(["$share/g/t/0", "$share/h/t/1"])


class ForgetfulStore(MemoryStore):
    """Loses in a crash what it may, and tells what nobody may expect any more."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[StoreOp] = []
        """What a crash does not undo."""
        self.entered: set[bytes] = set()
        """Payloads that were appended to the queue of a group."""
        self.let_go: set[bytes] = set()
        """Those that went to nobody, to a session that is not stored, or ended with their owner."""

    def commit(self, ops: Sequence[StoreOp]) -> None:
        moved = {
            op.delivery.message.payload
            for op in ops
            if isinstance(op, Append) and not is_group(op.client_id)
        }
        for op in ops:
            if isinstance(op, Append) and is_group(op.client_id):
                self.entered.add(op.delivery.message.payload)
            elif isinstance(op, Release) and is_group(op.client_id):
                assert op.delivery is not None
                self.let_go |= {op.delivery.message.payload} - moved
            elif isinstance(op, DropSession):
                self.let_go |= {
                    entry.delivery.message.payload
                    for entry in self.fetch(op.client_id, 0, 10**6, bytes_max=10**9)
                    if entry.delivery is not None
                }
            self.log += [] if isinstance(op, Settle | Sent) else [op]
            super().commit([op])

    def crash(self) -> None:
        self._sessions.clear()
        self._queues.clear()
        self._retained.clear()
        super().commit(self.log)


class ForgetfulStoreOnDisk(ForgetfulStore):
    on_disk = True


class Member(Peer):
    """Its QoS 1 identifiers end with its connection: the messages go to others."""

    def _leave(self) -> None:
        super()._leave()
        self.in_use = {each: payload for each, payload in self.in_use.items() if each > 32_767}


class SharedLedger(Ledger):
    """What is owed by whole groups."""

    def __init__(self, store: ForgetfulStore) -> None:
        super().__init__()
        self.store = store
        self.certain: set[bytes] = set()
        """Payloads whose group has had a durable member for certain ever since they were sent."""
        self.got: set[bytes] = set()
        self.ended: set[bytes] = set()
        """Those that reached somebody at QoS 2 or 0: there their way ends."""

    def message(self, publisher: Peer, topic: str, qos: int, size_bytes: int = 0) -> Publish:
        publish = super().message(publisher, topic, qos, size_bytes)
        if qos and self.has_member(topic):
            self.certain.add(publish.payload)
        return publish

    def has_member(self, topic: str) -> bool:
        """A durable session is in the group for certain, and was granted QoS 1 or 2."""
        return any(
            peer.is_durable and peer.is_sure_of_session and peer.subscriptions.get(GROUPS[topic])
            for peer in self.peers
        )

    def members_change(self) -> None:
        for topic in GROUPS:
            if not self.has_member(topic):
                messages = [self.messages[payload] for payload in self.certain]
                self.certain -= {each.payload for each in messages if each.publish.topic == topic}

    def acknowledged(self, peer: Peer, publish: Publish) -> None:
        super().acknowledged(peer, publish)
        assert publish.payload in self.store.entered or publish.payload not in self.certain

    def delivered(self, peer: Peer, publish: Publish) -> None:
        super().delivered(peer, publish)
        payload = publish.payload
        self.got.add(payload)
        if publish.qos != 1 and self.messages[payload].publish.qos == 2:
            assert payload not in self.ended, "a QoS 2 message reached two"
            self.ended.add(payload)


class SharedSessions(Sessions):
    """See the module."""

    peer = Member
    dropped = Sessions.dropped | {Reason.OFFLINE_QOS_0}

    def new_store(self) -> ForgetfulStore:
        self.store = ForgetfulStore()
        return self.store

    def new_ledger(self) -> Ledger:
        self.groups = SharedLedger(self.store)
        return self.groups

    def store_forgets(self) -> None:
        self.store.crash()

    @rule(index=PEERS, filter=FILTERS, qos=QOS)
    def subscribe(self, index: int, filter: str, qos: int) -> None:
        """The first ones, which name a topic, are made shared."""
        super().subscribe(index, GROUPS.get(filter, filter), qos)

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
        """To a member with room, when messages are as far as so many commits let them."""
        self.store_becomes_quick()
        self.subscribe(index, GROUPS[topic], qos)
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
                self.unsubscribe(index, GROUPS[topic])
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
        missing = self.store.entered - self.store.let_go - self.groups.got
        assert not missing


class SharedSessionsOnDisk(SharedSessions):
    """Over a store that is on disk, with room in memory for two messages per queue."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(backlog, "HERE_MAX", 2)
        self.patch.setattr(backlog, "PAGE_MAX", 3)

    def new_store(self) -> ForgetfulStore:
        self.store = ForgetfulStoreOnDisk()
        return self.store

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.patch.undo()


class FullSharedQueues(SharedSessions):
    """Publishers wait for room in the smallest of queues."""

    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 1, "block_s": 1e9}


class FullSharedQueuesOnDisk(SharedSessionsOnDisk):
    """The same on disk."""

    queues: ClassVar = {"queue_policy": "block", "queue_messages_max": 3, "block_s": 1e9}


TestSharedSessions = SharedSessions.TestCase
TestSharedSessionsOnDisk = SharedSessionsOnDisk.TestCase
TestFullSharedQueues = FullSharedQueues.TestCase
TestFullSharedQueuesOnDisk = FullSharedQueuesOnDisk.TestCase
TestSharedSessions.settings = TestSharedSessionsOnDisk.settings = settings(
    stateful_step_count=100, max_examples=5 * settings.default.max_examples
)
TestFullSharedQueues.settings = TestFullSharedQueuesOnDisk.settings = settings(
    stateful_step_count=100
)
