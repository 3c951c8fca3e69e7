"""Invariants of backlogs that share a budget, in memory or on disk:

1. A backlog never counts more messages, nor more bytes, than its limits, except promised ones.
2. The budget of the memory holds exactly the messages in memory: all of them without a disk; with
   one, the first messages, and nothing of an offline client. The budget of the disk then holds all.
   Both know the number of these backlogs.
3. First in, first out, also for messages that were on disk only, or were taken and put back; none
   comes twice, none is lost, and a taken one is not fetched though the disk still has it.
4. A rejection changes nothing and names the bound that was reached, the client's own first.
"""

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow import FairBudget, Reason
from flowguard.records import NEVER_S, Delivery, QueueEntry, packet_id_of
from flowguard.session.outbound import backlog as module
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.fetch import Fetch
from flowguard.session.session import Session
from flowguard.types import Publish

CLIENTS = st.integers(0, 2)
HERE_MAX, PAGE_MAX = 3, 2


def delivery_of(size_bytes: int) -> Delivery:
    return Delivery(Publish("", bytes(size_bytes), 1), 1, False, (), NEVER_S)


BASE_BYTES = delivery_of(0).size_bytes


class Backlogs(RuleBasedStateMachine):
    """Three clients of one budget, against three plain deques, which are the disk as well."""

    spills = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "HERE_MAX", HERE_MAX)
        self.patch.setattr(module, "PAGE_MAX", PAGE_MAX)

    @initialize(
        messages_max=st.integers(1, 12),
        bytes_max=st.integers(1, 99),
        limit=st.integers(1, 50),
        disk_limit=st.integers(1, 200),
    )
    def backlogs_are_made(
        self, messages_max: int, bytes_max: int, limit: int, disk_limit: int
    ) -> None:
        self.messages_max, self.bytes_max = messages_max, BASE_BYTES * bytes_max // 8
        self.budget = FairBudget(BASE_BYTES * limit // 4)
        self.disk_budget = FairBudget(BASE_BYTES * disk_limit // 4) if self.spills else None
        self.sessions = [
            Session(
                f"c{client}",
                Backlog(self.messages_max, self.bytes_max, self.budget, self.disk_budget),
                1,
                durable=True,
            )
            for client in range(3)
        ]
        for session in self.sessions:
            session.inflight.own_messages()
        self.queues = [session.queue for session in self.sessions]
        self.models: list[deque[tuple[int, Delivery]]] = [deque() for _ in range(3)]
        self.taken: list[dict[int, Delivery]] = [{} for _ in range(3)]
        """Messages that do not wait any more, and are still on the disk."""
        self.promised = [0] * 3
        """Messages that were put back, whatever the limits."""
        self.connected = [True] * 3
        self.fetches: list[Fetch] = []
        self.pos = 0

    def bytes_of(self, client: int) -> int:
        return sum(delivery.size_bytes for _, delivery in self.models[client])

    def reason(self, client: int, size_bytes: int) -> Reason | None:
        if len(self.models[client]) >= self.messages_max:
            return Reason.QUEUE_MESSAGES
        if self.bytes_of(client) + size_bytes > self.bytes_max:
            return Reason.QUEUE_BYTES
        held_bytes = [self.bytes_of(each) for each in range(3)]
        held_bytes[client] += size_bytes
        budget = self.disk_budget or self.budget
        left_bytes = budget.limit_bytes - sum(held_bytes)
        holders_count = sum(map(bool, held_bytes))
        if sum(held_bytes) <= budget.common_bytes:
            return None
        if held_bytes[client] * holders_count <= left_bytes:
            return None
        return Reason.NODE_DISK_QUEUE_BYTES if self.spills else Reason.NODE_QUEUE_BYTES

    @rule(client=CLIENTS, size_bytes=st.integers(0, 60))
    def arrives(self, client: int, size_bytes: int) -> None:
        delivery = delivery_of(size_bytes)
        expected = self.reason(client, delivery.size_bytes)
        queue = self.queues[client]
        assert queue.reserve(delivery.size_bytes) is expected
        if expected is None:
            self.pos += 1
            queue.put(self.pos, delivery, delivery.size_bytes, connected=self.connected[client])
            self.models[client].append((self.pos, delivery))

    @rule(client=CLIENTS)
    def is_taken(self, client: int) -> None:
        queue, model = self.queues[client], self.models[client]
        assert queue.waits == bool(model)
        waiting = queue.take()
        if waiting is None:
            assert queue.is_away == bool(model)
            return
        pos, delivery = model.popleft()
        assert waiting[0] == pos
        assert waiting[1].message.payload == delivery.message.payload
        self.taken[client][pos] = delivery
        self.sessions[client].inflight.positions[pos] = pos

    @rule(client=CLIENTS, data=st.data())
    def is_put_back(self, client: int, data: st.DataObject) -> None:
        if not self.taken[client]:
            return
        pos = data.draw(st.sampled_from(sorted(self.taken[client])))
        delivery = self.taken[client].pop(pos)
        del self.sessions[client].inflight.positions[pos]
        self.queues[client].put_back(pos, delivery, delivery.size_bytes)
        self.models[client] = deque(sorted([*self.models[client], (pos, delivery)]))
        self.promised[client] += 1

    @rule(client=CLIENTS)
    def asks_for_a_page(self, client: int) -> None:
        fetch = self.queues[client].fetch(self.sessions[client])
        if fetch is not None:
            self.fetches.append(fetch)

    @rule(data=st.data())
    def a_page_comes(self, data: st.DataObject) -> None:
        if not self.fetches:
            return
        self.answer(self.fetches.pop(data.draw(st.integers(0, len(self.fetches) - 1))))

    def answer(self, fetch: Fetch) -> None:
        client = next(n for n, session in enumerate(self.sessions) if session is fetch.owner)
        taken = self.taken[client]
        page = [
            QueueEntry(pos, packet_id_of(pos, 1), delivery)
            for pos, delivery in sorted([*self.models[client], *taken.items()])
            if fetch.after_pos < pos <= fetch.until_pos
        ]
        self.queues[client].fetched(fetch, page[:PAGE_MAX])

    @rule(client=CLIENTS)
    def leaves(self, client: int) -> None:
        self.connected[client] = False
        self.queues[client].leave()

    @rule(client=CLIENTS)
    def comes_back(self, client: int) -> None:
        self.connected[client] = True

    @rule(client=CLIENTS)
    def ends(self, client: int) -> None:
        self.queues[client].clear()
        self.models[client].clear()
        self.taken[client].clear()
        self.sessions[client].inflight.positions.clear()

    @rule(client=CLIENTS)
    def restarts(self, client: int) -> None:
        """Messages in the store are promised."""
        if not self.spills or any(fetch.owner is self.sessions[client] for fetch in self.fetches):
            return
        queue, model = self.queues[client], self.models[client]
        self.taken[client].clear()
        self.sessions[client].inflight.positions.clear()
        queue.clear()
        queue.restore(model[0][0] - 1 if model else 0, self.pos, len(model), self.bytes_of(client))

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "budget"):
            return
        for client, queue in enumerate(self.queues):
            assert queue.count == len(self.models[client])
            assert queue.count <= self.messages_max + self.promised[client]
            assert queue.size_bytes == self.bytes_of(client)
            assert queue.size_bytes <= self.bytes_max + self.promised[client] * (BASE_BYTES + 60)
            if self.spills and not self.connected[client] and not self.fetches:
                assert queue.charged_bytes <= PAGE_MAX * (BASE_BYTES + 60)
        charged = [queue.charged_bytes for queue in self.queues]
        assert self.budget.used_bytes == sum(charged)
        assert self.budget.holders_count == sum(map(bool, charged))
        if self.disk_budget is not None:
            held = [queue.size_bytes for queue in self.queues]
            assert self.disk_budget.used_bytes == sum(held)
            assert self.disk_budget.holders_count == sum(map(bool, held))

    def teardown(self) -> None:
        try:
            for client, session in enumerate(self.sessions):
                self.empty(client, session)
        finally:
            self.patch.undo()

    def empty(self, client: int, session: Session) -> None:
        """All waiting messages arrive."""
        session.queue.leave()
        while self.models[client]:
            self.is_taken(client)
            self.asks_for_a_page(client)
            while self.fetches:
                self.answer(self.fetches.pop())
        assert not session.queue.waits


class BacklogsOnDisk(Backlogs):
    spills = True


TestBacklogs = Backlogs.TestCase
TestBacklogsOnDisk = BacklogsOnDisk.TestCase


def test_a_message_that_overtook_another_is_behind_it_when_their_client_has_left() -> None:
    """Messages need not be put back in the order of their positions."""
    queue = Backlog(10, 1 << 20, FairBudget(1 << 20), FairBudget(1 << 20))
    for pos in (2, 1):
        assert queue.reserve(BASE_BYTES) is None
        queue.put(pos, delivery_of(0), BASE_BYTES, connected=True)
    queue.leave()
    fetch = queue.fetch(Session("c", queue, 1, durable=True))
    assert fetch is not None
    assert (fetch.after_pos, fetch.until_pos) == (0, 2)


def test_backlog_of_no_bytes_holds_nothing_when_the_store_has_lost_it() -> None:
    disk_budget = FairBudget(1 << 20)
    queue = Backlog(10, 1 << 20, FairBudget(1 << 20), disk_budget)
    queue.restore(0, 1, 1, 0)
    fetch = queue.fetch(Session("c", queue, 1, durable=True))
    assert fetch is not None
    queue.fetched(fetch, [])
    assert (queue.count, disk_budget.used_bytes, disk_budget.holders_count) == (0, 0, 0)
