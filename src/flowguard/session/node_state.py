"""NodeState: what the conversations of one node share, as plain attributes.

Everybody who serves a conversation reads and writes it directly: limits, counts, budgets, and who
is to be run or sent to next. It knows nobody of them, so all of the session room stands on it.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, final

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
"""Until a store says how large its disk is."""
WAKE_MAX: Final = 64
"""So many that wait for room are sent to again at once: most find none."""
Rejected = Callable[[str, str, Reason | ReasonCode], None]
"""Callback with client id, topic or filter, and reason."""


@final
class Rejections:
    """Reports of messages and filters that clients may not publish or subscribe to."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.on_publish: Rejected | None = None
        self.on_subscription: Rejected | None = None

    def publish(self, client_id: str, topic: str, reason: Reason) -> None:
        """Count and report a message that its publisher may not publish."""
        self._counters.drop(reason)
        if self.on_publish is not None:
            self.on_publish(client_id, topic, reason)

    def subscription(self, client_id: str, filter: str, code: int) -> None:
        """Report a filter that a client did not get."""
        if self.on_subscription is not None:
            self.on_subscription(client_id, filter, ReasonCode(code))


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
        "drops_oldest",
        "empty_queue",
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
        """`on_error` hears what broke in a chore, None: it is raised."""
        self.bounds, self.settings = bounds, bounds.settings
        limits = bounds.settings.session
        # What is asked per packet, out of the settings: each of their attributes is a search.
        self.maximum_qos, self.receive_maximum = limits.maximum_qos, limits.receive_maximum
        self.outbox_bytes_max, self.state_bytes_max = (
            limits.outbox_bytes_max,
            limits.state_bytes_max,
        )
        self.topic_alias_maximum = limits.topic_alias_maximum
        self.drops_oldest = limits.queue_policy == "drop-oldest"
        """Who makes room in a full queue: its oldest message, or else the new one."""
        self.blocks = limits.queue_policy == "block"
        """Publishers wait for room in a full queue."""
        self.spills = False
        """The store is on disk: what waits there need not be in memory."""
        self.read_only = False
        """The disk is full: new durable work is refused where its client can be told."""
        self.is_store_away = False
        """The store takes nothing now: who needs it waits, and nobody else does."""
        self.fenced = False
        """Sessions were another's already for which something of the batch being answered was."""
        self.counters = Counters()
        self.window, self.journal, self.moving = window, journal, Moving()
        self.input_holders: Holders[Conversation] = Holders(Budget(bounds.input_bytes))
        """Who has sent what is not decoded, and CONNECTs that are not answered."""
        self.outbox_budget, self.queue_budget = (
            FairBudget(bounds.outbox_bytes),
            FairBudget(bounds.queue_bytes),
        )
        self.state_budget = FairBudget(bounds.state_bytes)
        self.disk_queue_budget = FairBudget(UNKNOWN_DISK_BYTES)
        """What waits in durable queues, where the store is on disk."""
        # Of all clean sessions for which nothing has waited yet; never changed (`own_queue`).
        self.empty_queue = Backlog(
            limits.queue_messages_max, limits.queue_bytes_max, self.queue_budget
        )
        self.inflight = Inflight(bounds, self.queue_budget)
        self.sent: dict[str, int] = {}
        """Highest position sent, by client id of a durable session; for the store, in time."""
        self.fetches: deque[Fetch] = deque()
        """Pages that the store is to be asked for; `page_fetched` follows."""
        self.progress: dict[PageOwner, ReadProgress] = {}
        """Of backlogs that are read from the disk for clients who are here."""
        self.replays: deque[Sender] = deque()
        """Who has more of a backlog to send; `Sender.take_turn` follows."""
        self.chores = Chores(on_error)
        """What is done piece by piece."""
        self.runnable: list[Conversation] = []
        """Those with decoded work left: to be run again in the next turn."""
        self.dirty: list[Conversation] = []
        """Those with bytes to send."""
        self.later: dict[Conversation, None] = {}
        """Those that wait for room of which nobody tells them, the longest first (`wake_later`)."""
        self.paused_count = 0
        """Connections of which packets wait for room in a window."""
        self.expired: Callable[[Settle, float], None] = self._settle
        """A message of a durable session expired before it was sent; it is settled like this."""
        self.rejections = Rejections(self.counters)

    def wake_later(self) -> None:
        """There may be room: some of those that wait for it are sent to again."""
        for conversation in list(islice(self.later, WAKE_MAX)):
            del self.later[conversation]
            self.dirty.append(conversation)

    def _settle(self, settle: Settle, now_s: float) -> None:
        self.journal.note(settle)

    def when_durable(self, done: Callable[[float], None], now_s: float, name: str) -> None:
        """Call `done(now_s)` once all that was noted so far under that name is durable."""
        self.journal.append([], done, now_s, name)
