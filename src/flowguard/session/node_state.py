"""NodeState: the state that the connections of one node share, as plain attributes.

The modules of this package read and write it directly: limits, counts, budgets, and the connections
to run or send to next. It depends on none of them.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple, final

from flowguard.bounds import Bounds
from flowguard.flow import Budget, FairBudget, Holders, NodeWindow, Reason
from flowguard.records import Settle
from flowguard.session.chores import Chores
from flowguard.session.conversation import Conversation, Sender
from flowguard.session.counters import Counters
from flowguard.session.host import GroupCommit
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.fetch import Fetch, Moving, PageOwner, ReadProgress
from flowguard.session.outbound.inflight import Inflight
from flowguard.types import ReasonCode

UNKNOWN_DISK_BYTES: Final = 1 << 62
"""Budget until a store reports the size of its disk."""
WAKE_MAX: Final = 64
"""Maximum number of waiting connections that are sent to again at once; most find no capacity."""
REJECTED_MAX: Final = 1_024
REJECTED_TEXT_MAX: Final = 128
"""Bounds of the remembered rejections: clients, and characters of a client id and a topic."""
Rejected = Callable[[str, str, str, Reason | ReasonCode], None]
"""Callback with client id, user ("" if unknown), topic or filter, and reason."""
Subscribed = Callable[[str, str, str, int], None]
"""Callback with client id, user ("" if unknown), filter, and granted QoS."""


class RejectedPublishes(NamedTuple):
    """The messages of a client that it was not allowed to publish."""

    messages: int
    topic: str
    """Topic of the latest one."""
    reason: Reason
    at_s: float
    """Time of the latest one."""


@final
class Rejections:
    """Reports of messages and filters that clients may not publish or subscribe to, and of those
    that they got."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.last: dict[str, RejectedPublishes] = {}
        """The clients whose messages were rejected last, by client id, oldest first."""
        self.on_publish: Rejected | None = None
        self.on_subscription: Rejected | None = None
        self.on_subscribed: Subscribed | None = None

    def publish(self, client_id: str, user: str, topic: str, reason: Reason, now_s: float) -> None:
        """Count and report a message that its publisher may not publish."""
        self._counters.drop(reason)
        before = self.last.pop(client_id, None)
        if len(client_id) <= REJECTED_TEXT_MAX:
            if len(self.last) >= REJECTED_MAX:
                del self.last[next(iter(self.last))]
            messages = 1 if before is None else before.messages + 1
            shown = topic[:REJECTED_TEXT_MAX]
            self.last[client_id] = RejectedPublishes(messages, shown, reason, now_s)
        if self.on_publish is not None:
            self.on_publish(client_id, user, topic, reason)

    def subscription(self, client_id: str, user: str, filter: str, code: int) -> None:
        """Report a filter that a client did not get."""
        if self.on_subscription is not None:
            self.on_subscription(client_id, user, filter, ReasonCode(code))

    def subscribed(self, client_id: str, user: str, filter: str, qos: int) -> None:
        """Report a filter that a client got."""
        if self.on_subscribed is not None:
            self.on_subscribed(client_id, user, filter, qos)


@final
class NodeState:
    """One per node, which owns it."""

    __slots__ = (
        "blocks",
        "bounds",
        "chores",
        "counters",
        "dirty",
        "disk_queue_budget",
        "draining",
        "drops_oldest",
        "empty_queue",
        "empty_stored",
        "expired",
        "fenced",
        "fetches",
        "inflight",
        "input_holders",
        "is_store_away",
        "journal",
        "later",
        "maximum_qos",
        "moving",
        "outbox_budget",
        "outbox_bytes_max",
        "paused_count",
        "progress",
        "queue_budget",
        "read_only",
        "receive_maximum",
        "rejections",
        "replays",
        "runnable",
        "sent",
        "settings",
        "spills",
        "state_budget",
        "state_bytes_max",
        "topic_alias_maximum",
        "window",
    )

    def __init__(
        self,
        bounds: Bounds,
        window: NodeWindow,
        journal: GroupCommit,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """`on_error` gets exceptions of background tasks; without it they are raised."""
        self.bounds, self.settings = bounds, bounds.settings
        limits = bounds.settings.session
        # Settings that each packet needs: an attribute of the settings costs a search.
        self.maximum_qos, self.receive_maximum = limits.maximum_qos, limits.receive_maximum
        self.outbox_bytes_max, self.state_bytes_max, self.topic_alias_maximum = (
            limits.outbox_bytes_max,
            limits.state_bytes_max,
            limits.topic_alias_maximum,
        )
        self.drops_oldest = limits.queue_policy == "drop-oldest"
        """True if a full queue drops its oldest message, False if it drops the new one."""
        self.blocks = limits.queue_policy == "block"
        """True if publishers wait for capacity in a full queue."""
        self.spills = False
        """True if the store is on disk, so that waiting messages need not be in memory."""
        self.read_only = False
        """True if the disk is full: new durable work is rejected, or waits if it cannot be."""
        self.draining = False
        """True if the node is about to end: work in process goes on, but nothing more is
        admitted."""
        self.is_store_away = False
        """True if the store is unavailable; only work that needs it waits."""
        self.fenced = False
        """True if the batch being answered had operations for sessions of another broker."""
        self.counters = Counters()
        self.window, self.journal, self.moving = window, journal, Moving()
        self.input_holders: Holders[Conversation] = Holders(Budget(bounds.input_bytes))
        """Connections with input that is not decoded, or with CONNECTs that are not answered."""
        self.outbox_budget, self.queue_budget = (
            FairBudget(bounds.outbox_bytes),
            FairBudget(bounds.queue_bytes),
        )
        self.state_budget = FairBudget(bounds.state_bytes)
        self.disk_queue_budget = FairBudget(UNKNOWN_DISK_BYTES)
        """Budget of messages in durable queues, if the store is on disk."""
        # Shared by sessions for which no message has waited; never changed (`own_queue`). Durable
        # ones have another one if the store is on disk.
        self.empty_queue = self.empty_stored = Backlog(
            limits.queue_messages_max, limits.queue_bytes_max, self.queue_budget
        )
        self.inflight = Inflight(bounds, self.queue_budget)
        self.sent: dict[str, int] = {}
        """Highest position sent, by client id of a durable session; the store gets it later."""
        self.fetches: deque[Fetch] = deque()
        """Pages to read from the store; `page_fetched` follows."""
        self.progress: dict[PageOwner, ReadProgress] = {}
        """Progress of backlogs that are read from the disk for connected clients."""
        self.replays: deque[Sender] = deque()
        """Connections with more of a backlog to send; `Sender.take_turn` follows."""
        self.chores = Chores(on_error)
        """Background tasks."""
        self.runnable: list[Conversation] = []
        """Connections with decoded packets, which run again in the next turn."""
        self.dirty: list[Conversation] = []
        """Connections with bytes to send."""
        self.later: dict[Conversation, None] = {}
        """Connections that wait for capacity without an event, longest first (`wake_later`)."""
        self.paused_count = 0
        """Number of connections with packets that wait for a window."""
        self.expired: Callable[[Settle, float], None] = self._settle
        """Settles a message of a durable session that expired before it was sent."""
        self.rejections = Rejections(self.counters)

    def wake_later(self) -> None:
        """Send again to some of the connections that wait for capacity."""
        for conversation in list(islice(self.later, WAKE_MAX)):
            del self.later[conversation]
            self.dirty.append(conversation)

    def _settle(self, settle: Settle, now_s: float) -> None:
        self.journal.note(settle)

    def when_durable(self, done: Callable[[float], None], now_s: float, name: str) -> None:
        """Call `done(now_s)` once all operations noted so far under that name are durable."""
        self.journal.append([], done, now_s, name)
