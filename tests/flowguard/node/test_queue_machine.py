"""A queue and what gives way in it, against arithmetic: every message is delivered or counted.

One publisher, one durable subscriber that comes, goes and acknowledges when it likes. Messages are
of different sizes and expire or do not; commits and pages are late, apart from each other; the node
restarts with other limits. Over a store in memory, and one that pages, three messages at a time.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.codec.packets import Puback
from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore
from flowguard.types import Properties, Publish
from tests.flowguard.node.ledger import check_budgets, check_store
from tests.support.stage import Client, Stage, StoreOnDisk

PAGE_MAX = 3
PAGE_BYTES_MAX = 1_500
NODE_BYTES = st.sampled_from([1_500, 4_000, 1_000_000])
SIZES = st.sampled_from([0, 0, 0, 300, 900])
MESSAGE_BYTES = 2_000
"""Maximum size of a message in the budget."""
INTERVALS_S = st.sampled_from([None, None, 2, 10])


class Queues(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(backlog, "HERE_MAX", 2)
        self.patch.setattr(backlog, "PAGE_MAX", PAGE_MAX)
        self.patch.setattr(backlog, "PAGE_BYTES_MAX", PAGE_BYTES_MAX)
        self.published = 0
        self.got: list[int] = []
        self.dropped_before = 0
        self.kept = 0
        """Number of messages that a restart with lower limits found in the queue."""
        self.has_restarted = False
        """After a restart it is not known what on the disk has expired: a page may be above the
        limits until then."""
        self.client: Client | None = None

    @initialize(
        disk=st.booleans(),
        policy=st.sampled_from(["drop-new", "drop-oldest"]),
        messages_max=st.integers(1, 8),
        bytes_max=st.sampled_from([1_024, 3_000, 1_000_000]),
        node_bytes=NODE_BYTES,
    )
    def node_starts(
        self, disk: bool, policy: str, messages_max: int, bytes_max: int, node_bytes: int
    ) -> None:
        self.policy = policy
        store = StoreOnDisk() if disk else MemoryStore()
        self.open(store, 0.0, messages_max, bytes_max, node_bytes)
        self.connect(receive_maximum=1)
        assert self.client is not None
        self.client.subscribe("a", qos=1)

    def open(
        self, store: Any, now_s: float, messages_max: int, bytes_max: int, node_bytes: int
    ) -> None:
        limits = {
            "queue_policy": self.policy,
            "queue_messages_max": messages_max,
            "queue_bytes_max": bytes_max,
            "packet_size_max": 1_024,
        }
        self.stage = Stage({"session": limits}, store=store, now_s=now_s)
        self.messages_max = messages_max
        node = self.stage.node
        for budget in (node.state.queue_budget, node.state.disk_queue_budget):
            budget.limit_bytes = max(node_bytes, budget.used_bytes)

    @property
    def is_held(self) -> bool:
        return self.stage.hold_commits or self.stage.hold_fetches

    # --- the subscriber ----------------------------------------------------------------------

    @precondition(lambda self: not self.stage.hold_commits)
    @rule(receive_maximum=st.integers(1, 5))
    def connect(self, receive_maximum: int) -> None:
        self.client = self.stage.connect_durable("s", receive_maximum=receive_maximum)
        self.unacknowledged: list[int] = []

    @rule()
    def leave(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    @rule(count=st.integers(1, 5))
    def acknowledge(self, count: int) -> None:
        if self.client is None:
            return
        self.receive()
        acknowledged, self.unacknowledged = (
            self.unacknowledged[:count],
            self.unacknowledged[count:],
        )
        self.client.send(*map(Puback, acknowledged))

    def receive(self) -> None:
        assert self.client is not None
        for message in self.client.publishes(acknowledge=False):
            self.unacknowledged.append(message.packet_id)
            number = int(message.payload.split(b" ")[0])
            if message.dup:
                assert number in self.got or not self.got or number > self.got[-1]
            if number not in self.got:
                assert not self.got or number > self.got[-1], "delivered out of order"
                self.got.append(number)

    # --- the publisher -----------------------------------------------------------------------

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=12), interval_s=INTERVALS_S)
    def publish(self, sizes: list[int], interval_s: int | None) -> None:
        """Publish as the node itself, so that a slow store delays no client."""
        for size_bytes in sizes:
            self.published += 1
            payload = (b"%d " % self.published).ljust(size_bytes)
            properties = Properties(message_expiry_interval=interval_s)
            message = Publish("a", payload, 1, properties=properties)
            self.stage.node.router.publish_own(message, self.stage.now_s)
            self.limits_hold()
        self.stage.settle()

    # --- the node and its store --------------------------------------------------------------

    @rule(commits=st.booleans(), fetches=st.booleans())
    def store_is_slow(self, commits: bool, fetches: bool) -> None:
        self.stage.hold_commits = commits
        self.stage.hold_fetches = fetches
        self.stage.settle()

    @rule()
    def store_finishes_one_batch(self) -> None:
        self.stage.finish_commit()

    @rule(seconds=st.sampled_from([0.2, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.stage.advance(seconds)

    @rule(
        messages_max=st.integers(1, 8),
        bytes_max=st.sampled_from([1_024, 3_000, 1_000_000]),
        node_bytes=NODE_BYTES,
    )
    def restart(self, messages_max: int, bytes_max: int, node_bytes: int) -> None:
        self.release()
        self.dropped_before += self.stage.node.counters.publish_dropped
        self.client = None
        self.has_restarted = True
        self.open(self.stage.store, self.stage.now_s, messages_max, bytes_max, node_bytes)
        self.stage.settle()
        self.kept = self.stage.node.registry.sessions["s"].queue.count

    def release(self) -> None:
        self.stage.release_fetches()
        self.stage.release_commits()

    # --- what holds --------------------------------------------------------------------------

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "stage"):
            return
        session = self.stage.node.registry.sessions["s"]
        count = session.queue.count
        self.kept = min(self.kept, count)
        may_overshoot = self.policy == "drop-oldest" or self.has_restarted
        overshoot = PAGE_MAX if may_overshoot else 0
        assert count <= max(self.messages_max + overshoot, self.kept)
        assert len(session.inflight.messages) <= 5
        node, queue = self.stage.node, session.queue
        budget = node.state.disk_queue_budget if queue.spills else node.state.queue_budget
        assert budget.used_bytes <= budget.limit_bytes
        overshoot_bytes = queue.size_bytes - queue.held_bytes
        if not may_overshoot or not queue.spills:
            assert overshoot_bytes == 0
        assert overshoot_bytes <= PAGE_BYTES_MAX + MESSAGE_BYTES

    @invariant()
    def the_store_holds_what_is_counted(self) -> None:
        if hasattr(self, "stage") and not self.is_held:
            check_budgets(self.stage.node, [])
            check_store(self.stage.node, self.stage.store)

    def teardown(self) -> None:
        try:
            if hasattr(self, "stage"):
                self.everything_is_accounted_for()
        finally:
            self.patch.undo()

    def everything_is_accounted_for(self) -> None:
        self.release()
        if self.client is None:
            self.connect(receive_maximum=5)
        while True:
            self.receive()
            if not self.unacknowledged:
                break
            self.acknowledge(5)
        session = self.stage.node.registry.sessions["s"]
        assert (session.queue.count, session.queue.size_bytes) == (0, 0)
        self.the_store_holds_what_is_counted()
        dropped = self.dropped_before + self.stage.node.counters.publish_dropped
        assert len(self.got) + dropped == self.published


TestQueues = Queues.TestCase
TestQueues.settings = settings(
    stateful_step_count=50, max_examples=2 * settings.default.max_examples
)
