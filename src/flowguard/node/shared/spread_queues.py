"""SpreadQueues: shared subscriptions of applications that brokers have together.

The store reports these groups (`stores.group_feed`). From then on each broker writes matching
messages there, with or without members of its own. So a group is in the table of subscriptions as
long as any broker has it: a session without a client is its member.

Messages that waited for a group before stay in the queue that it had here (`SharedQueues`), for the
members of this broker; no message is added to that queue.
"""

from typing import final

from flowguard.flow import Budget
from flowguard.node.journal import Journal
from flowguard.node.publish.plans import Plans, Shared
from flowguard.node.shared.shared_queue import HandOver
from flowguard.node.shared.spread_queue import SpreadQueue
from flowguard.records import DropSession, PutSession, SinkKind, StoreOp, key_of
from flowguard.routing import parse_shared
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.stores import GroupFeed
from flowguard.stores.group_feed import (
    GroupBegan,
    GroupCame,
    GroupEnded,
    GroupGone,
    GroupNews,
    GroupPaused,
    GroupTrouble,
    Trouble,
)
from flowguard.types import SESSION_NEVER_EXPIRES, SubscriptionOptions


@final
class SpreadQueues:
    """One per node; does nothing if the store has no such groups."""

    def __init__(
        self, node: NodeState, plans: Plans, journal: Journal, hand_over: HandOver
    ) -> None:
        self._node = node
        self._table = plans.table
        self._plans = plans
        self._journal = journal
        self._feed: GroupFeed | None = None
        self._queues: dict[Shared, SpreadQueue] = {}
        self._claims: dict[str, None] = {}
        """Filters that have members on this node, as the store has or will have recorded."""
        self.budget = Budget(node.settings.kafka.groups_bytes_max or 0)
        """Messages of all these groups that are in memory and not settled."""
        self.troubles: dict[Trouble, str] = {}
        """Faults that concern all these groups, with their causes."""
        self._said: list[tuple[str, Trouble, str]] = []
        # Every client has an id that is not empty.
        self._nobody = Session("", node.empty_queue, 0, durable=False)
        self._nobody.ended = True
        self._hand_over = hand_over

    def use(self, feed: GroupFeed | None, now_s: float) -> None:
        """Take the feed of the store, before sessions are recovered."""
        self._feed = feed
        self.take_news(now_s)

    def of(self, group: Shared) -> SpreadQueue | None:
        return self._queues.get(group)

    def named(self, filter: str) -> SpreadQueue | None:
        group = self._group(filter)
        return None if group is None else self._queues.get(group)

    # --- members -----------------------------------------------------------------------------

    def concerns(self, group: Shared, session: Session) -> bool:
        """Return True if a group is one of these, or becomes one with this member."""
        return self._feed is not None and (session.is_application or group in self._queues)

    def joined(self, filter: str) -> list[StoreOp]:
        """Note a member on this node; return the operations that precede its SUBACK."""
        if filter in self._claims:
            return []
        self._claims[filter] = None
        return [PutSession(key_of(SinkKind.MEMBERS, filter), SESSION_NEVER_EXPIRES, None, True)]

    def left(self, filter: str, group: Shared) -> list[StoreOp]:
        """Note that a member has left; return the operations if it was the last on this node."""
        if filter not in self._claims or self.members_count(group):
            return []
        del self._claims[filter]
        return [DropSession(key_of(SinkKind.MEMBERS, filter))]

    def members_count(self, group: Shared) -> int:
        """Return the number of members that are sessions of clients."""
        return len(group) - (group in self._queues)

    def welcome(self, group: Shared, member: Session) -> None:
        """Let a new or reconnected member have messages."""
        queue = self._queues.get(group)
        if queue is not None:
            queue.welcome(member)
            self._look(queue)

    # --- restart -----------------------------------------------------------------------------

    def stored(self, filter: str) -> None:
        """Note that a group had members on this node before a restart."""
        self._claims[filter] = None

    def recovered(self) -> None:
        """Drop claims without members, when all durable members are recovered."""
        for filter in list(self._claims):
            group = self._group(filter)
            if self._feed is None or group is None or not self.members_count(group):
                del self._claims[filter]
                self._journal.note(DropSession(key_of(SinkKind.MEMBERS, filter)))

    # --- news of the store -------------------------------------------------------------------

    def tick(self) -> None:
        """Report to the store which groups have connected members."""
        for queue in self._queues.values():
            self._look(queue)

    def _look(self, queue: SpreadQueue) -> None:
        is_wanted = queue.has_connected
        if is_wanted != queue.is_wanted and self._feed is not None:
            queue.is_wanted = is_wanted
            self._feed.want(queue.name, is_wanted)

    def take_news(self, now_s: float) -> None:
        """Apply the news of the store since the last call."""
        if self._feed is None:
            return
        for news in self._feed.take_news():
            if isinstance(news, GroupTrouble) and not news.filter:
                self._note(self.troubles, news)
                continue
            if not _is_shared(news.filter):
                continue  # Written by another program than a broker.
            if isinstance(news, GroupBegan):
                self._begin(news.filter)
                continue
            group = self._group(news.filter)
            queue = None if group is None else self._queues.get(group)
            if group is not None and queue is not None:
                self._take(news, group, queue, now_s)

    def _take(self, news: GroupNews, group: Shared, queue: SpreadQueue, now_s: float) -> None:
        if isinstance(news, GroupTrouble):
            self._note(queue.troubles, news)
        elif isinstance(news, GroupCame):
            queue.came(news.messages, now_s, is_replay=news.is_replay)
        elif isinstance(news, GroupGone):
            queue.gone(news.positions)
        elif isinstance(news, GroupPaused):
            queue.pause(news.is_paused, now_s)
        elif isinstance(news, GroupEnded):
            self._end(news.filter, group, queue)

    def _note(self, troubles: dict[Trouble, str], news: GroupTrouble) -> None:
        known = news.trouble in troubles
        if news.why:
            troubles[news.trouble] = news.why
        elif known:
            del troubles[news.trouble]
        if bool(news.why) != known:
            self._said.append((news.filter, news.trouble, news.why))

    def take_troubles(self) -> list[tuple[str, Trouble, str]]:
        """Return the faults that have begun or ended since the last call.

        Each has a filter ("" for all groups), a kind and a cause ("" if it has ended).
        """
        said, self._said = self._said, []
        return said

    @property
    def count(self) -> int:
        return len(self._queues)

    @property
    def held_count(self) -> int:
        """Number of messages of all these groups that are in memory and not settled."""
        return sum(queue.held_count for queue in self._queues.values())

    @property
    def troubled_count(self) -> int:
        """Number of groups with a fault, besides lost records, which remain lost."""
        return sum(
            any(each is not Trouble.RECORD for each in queue.troubles)
            for queue in self._queues.values()
        )

    def of_member(self, session: Session) -> list[SpreadQueue]:
        found = [self.named(filter) for filter in session.subscriptions]
        return [queue for queue in found if queue is not None]

    def _begin(self, filter: str) -> None:
        self._table.subscribe(filter, self._nobody, SubscriptionOptions(2))
        group = self._group(filter)
        assert group is not None
        if group not in self._queues:
            queue = SpreadQueue(
                filter, group, self._node, self._journal, self._hand_over, self.budget
            )
            self._queues[group] = queue
            self._plans.changed(group.filter)
            name = queue.client_id
            self._journal.note(PutSession(name, SESSION_NEVER_EXPIRES, None, True))
            if self.members_count(group):  # Devices of a local group.
                for op in self.joined(filter):
                    self._journal.note(op)
            self._look(queue)

    def _end(self, filter: str, group: Shared, queue: SpreadQueue) -> None:
        assert self._feed is not None
        del self._queues[group]
        queue.end()
        self._feed.want(filter, False)
        self._table.unsubscribe(filter, self._nobody)
        self._plans.changed(group.filter)
        self._journal.note(DropSession(queue.client_id))

    def _group(self, filter: str) -> Shared | None:
        key = parse_shared(filter)
        return None if key is None else self._table.group(*key)


def _is_shared(filter: str) -> bool:
    try:
        return parse_shared(filter) is not None
    except ValueError:
        return False
