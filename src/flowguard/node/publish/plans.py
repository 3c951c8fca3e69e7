"""Plans: the sessions that a topic reaches and how, computed once per topic.

Matching a topic costs microseconds, looking a plan up costs a tenth of one. A plan merges a
session's overlapping subscriptions into one delivery (`grouping`). It gathers sessions that get the
very same packet in one group, so that the packet is encoded once for all of them. A plan of more
than `MATCHES_PIECE` subscriptions is made piece by piece while its publishers wait (`Making`).

Plans are forgotten by topic: a changed filter concerns only the plans of the topics that it
matches. If it has no wildcard, the plan of its one topic is forgotten at once. Any other plan is
checked at the next PUBLISH to its topic (`flowguard.routing.changed_filters`). If memory is short,
the oldest plans are forgotten first, one by one.

Until this check, an outdated plan keeps ended sessions and groups in memory. The bytes of these
count with those of the plans, until each plan has been checked since (`tidy`).

A session may have No Local on some of its overlapping subscriptions only. Then its own messages
reach it by the others alone, at their QoS and with their identifiers. The groups of `own` do this.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, final

from flowguard.flow import Budget, Cost
from flowguard.node.peers.messages import NO_SHARES
from flowguard.node.peers.peer import Peer
from flowguard.node.peers.peer_routes import PeerRoutes
from flowguard.node.publish.grouping import Group, Grouping, Match
from flowguard.routing import (
    ChangedFilters,
    Routes,
    SharedGroup,
    SubscriptionTable,
    has_wildcard,
    levels_count,
)
from flowguard.session.session import Session
from flowguard.types import ReasonCode, SubscriptionOptions

WIDE_DELIVERIES: Final = 1_000
"""Maximum number of deliveries in one time slice, of up to four milliseconds.
A message with more is delivered in pieces."""
DELIVERIES_PIECE: Final = 250
"""Deliveries of such a piece: other clients wait for one of them, up to a millisecond."""
MATCHES_PIECE: Final = 4_000
"""Subscriptions that are added to a plan in one time slice: up to three milliseconds."""
RIGHTS_PIECE: Final = 500
"""Subscriptions whose rights are checked in one time slice: up to three milliseconds."""
PLAN_BYTES: Final = 400
GROUP_BYTES: Final = 200
PLACE_BYTES: Final = 10
IDENTIFIER_BYTES: Final = 40
"""Memory of a plan, and of each group, session and subscription identifier in it, without its
topic: measured with tracemalloc on CPython 3.11, compiled and not, and rounded up."""
TOPIC_BYTES: Final = 16
"""Memory of a topic besides its text."""
ENDED_BYTES: Final = 1_500
"""Memory of an ended session or shared subscription, besides its names."""
CHANGES_SHARE: Final = 8
"""The record of changed filters takes at most an eighth of the memory of the plans."""
TIDY_PIECE: Final = 20
"""Plans that are checked in one tick: four milliseconds if each walk meets all changed filters,
else a few microseconds."""

Table = SubscriptionTable[Session, SubscriptionOptions]
Shared = SharedGroup[Session, SubscriptionOptions]
AllRoutes = Routes[Session, SubscriptionOptions]


@dataclass(slots=True)
class Plan:
    """Targets of the messages of one topic, or `refused`, the reason code if none may be published.

    - `own`          groups for messages published by one of their sessions, for that session only
    - `deliveries`   number of deliveries of a message; a subscription identifier counts as one more
    - `ops`          maximum number of store operations of a message of QoS 1 or 2
    - `extra`        cost of the deliveries above one unit
    - `is_heavy`     True if deliveries and operations cost more than one unit
    - `heavy_count`  number of deliveries if `is_heavy`, else 0
    """

    groups: list[Group]
    shared: list[Shared]
    refused: ReasonCode | None = None
    own: list[Group] = field(default_factory=list)
    deliveries: int = 0
    ops: int = 0
    extra: int = 0
    is_heavy: bool = False
    heavy_count: int = 0
    is_wide: bool = False
    """True if it has too many deliveries for one time slice; see `cut`."""
    size_bytes: int = PLAN_BYTES
    """Memory of the plan without its topic."""
    logs: bool = False
    """True if its messages of QoS 1 and 2 enter the durable log.
    Then they enter only the queues of sessions that do not read the log."""
    version: int = 0
    """Version of the subscriptions at the last check that found it right."""
    making: "Making | None" = None
    """The work that is left if the plan is not made yet, else None.
    Until then, the sizes and counts of the plan are upper bounds."""
    peers: tuple[Peer, ...] = ()
    """Peers whose sessions get these messages."""
    shares: bytes = NO_SHARES
    """Nodes that serve shared subscriptions, encoded for these peers."""
    is_detour: bool = False
    """True if it is wide or has peers."""
    durable: bool = field(init=False)
    has_more: bool = field(init=False)
    """True if there are receivers besides `groups`."""
    is_empty: bool = field(init=False)
    solo: Session | None = field(init=False)
    """The only session that gets these messages, if no option changes them, or None.
    Most topics have one."""
    is_for_peers: bool = field(init=False)
    """True if only sessions of peers get these messages."""
    burst_qos: int = field(init=False)
    """Highest QoS of bursts that can be routed as one without queue or store, or -1."""

    def __post_init__(self) -> None:
        self.durable = self.ops > 0
        self.has_more = bool(self.shared or self.own or self.peers)
        self.is_empty = not self.groups and not self.shared and not self.peers
        has_own = bool(self.groups or self.shared or self.own)
        self.is_for_peers = bool(self.peers) and not has_own and self.shares == NO_SHARES
        self.solo = self._solo()
        self.burst_qos = self._burst_qos()

    def made(self, grouping: Grouping, own: list[Group], cost: Cost) -> None:
        """Set its groups, and what follows from them."""
        groups, shared = grouping.groups(), self.shared
        self.groups, self.own = groups, own
        deliveries = len(shared) + len(self.peers)
        size_bytes = PLAN_BYTES + PLACE_BYTES * deliveries + len(self.shares)
        for group in groups:
            deliveries += len(group.sessions) + len(group.identifiers)
            size_bytes += _group_bytes(group)
        for group in own:
            size_bytes += _group_bytes(group)
        self.deliveries = deliveries
        self.ops = len(shared) + grouping.ops + len(self.peers)
        self.size_bytes = size_bytes
        self.weigh(cost)
        self.__post_init__()

    def weigh(self, cost: Cost) -> None:
        """Set the attributes that follow from its deliveries and operations."""
        self.extra = cost.of(self.deliveries, 0) - 1
        self.is_heavy = cost.of(self.deliveries, 0, self.ops) > 1
        self.heavy_count = self.deliveries if self.is_heavy else 0
        self.is_wide = self.deliveries > WIDE_DELIVERIES
        self.is_detour = self.is_wide or len(self.peers) > 0

    def with_shared(self, shared: list[Shared]) -> "Plan":
        """Return this plan with these shared subscriptions alone."""
        return replace(self, shared=shared)

    @property
    def takes_durable_bursts(self) -> bool:
        """True if a burst of QoS 1 goes through the store as one, to one session's queue."""
        return self.solo is not None and self.durable and not (self.logs or self.is_heavy)

    def _solo(self) -> Session | None:
        if len(self.groups) != 1 or self.has_more:
            return None
        group = self.groups[0]
        if len(group.sessions) != 1 or group.no_local or group.identifiers:
            return None
        return group.sessions[0]

    def _burst_qos(self) -> int:
        if self.refused is not None or self.has_more or self.is_wide:
            return -1
        if any([group.no_local or group.identifiers for group in self.groups]):
            return -1
        if self.is_empty or self.durable or not all([group.qos for group in self.groups]):
            return 0
        return 1


@final
class Making:
    """A plan in the making; if a topic has several, all but the last are outdated."""

    __slots__ = ("_plan", "_plans", "_topic", "_work")

    def __init__(self, plans: "Plans", topic: str, plan: Plan, work: Iterator[bool]) -> None:
        self._plans = plans
        self._topic = topic
        self._plan = plan
        self._work = work

    def step(self) -> None:
        """Do a piece."""
        if not next(self._work, False):
            self._plan.making = None
            self._plans.made(self._topic, self._plan)


@final
class Plans:
    """A cache of plans over the node's subscription table, bounded in bytes."""

    def __init__(self, table: Table, cost: Cost, *, levels_max: int, bytes_max: int) -> None:
        self.table = table
        self._cost = cost
        self._levels_max = levels_max
        self.budget = Budget(bytes_max)
        self.peer_routes = PeerRoutes()
        self.by_topic: dict[str, Plan] = {}
        """Plans by topic; one with an old `version` may be outdated, and `find` checks it."""
        self.log_threshold = 0
        """Topics with this number of durable subscribers are logged, or 0 for none."""
        self.uses_log = False
        """True if a session may read the log."""
        self.kept_groups: set[Shared] = set()
        """Shared subscriptions of applications; all their messages are logged."""
        self.asks_rights = False
        """True if rules are configured; a subscriber may lack the right to receive a topic."""
        self.version = 0
        """Version of all filters with wildcards."""
        self._changed = ChangedFilters(bytes_max // CHANGES_SHARE)
        self._making: dict[str, Plan] = {}
        """Plans that are not made yet, by topic."""
        self._order: deque[str] = deque()
        """Topics, the oldest plan first; a topic that was forgotten since may occur twice."""
        self._ended_bytes = 0
        """Memory of the sessions and groups that have ended since this lap of `tidy` began."""
        self._ended_before_bytes = 0
        """Memory of those that ended in the lap before; after this lap no plan has them."""
        self._lap_left = 0

    def changed(self, filter: str) -> None:
        """Note a new or removed subscription to `filter`, without `$share/` and name."""
        if has_wildcard(filter):
            changes, budget = self._changed, self.budget
            budget.used_bytes -= changes.size_bytes
            changes.note(filter)
            budget.used_bytes += changes.size_bytes
            self.version = changes.version
            self._make_room(0)
        else:
            self._forget(filter)

    def ended(self, names_bytes: int) -> None:
        """Count a session or a shared subscription that has left the table for good.

        Plans of topics that matched one of its filters with wildcards may keep it in memory.
        """
        size_bytes = ENDED_BYTES + names_bytes
        self.budget.used_bytes += size_bytes
        self._ended_bytes += size_bytes
        self._make_room(0)

    def find(self, topic: str) -> Plan:
        """Return the plan of `topic`; remake it only if a matching subscription has changed."""
        plan = self.by_topic.get(topic) or self._making.get(topic)
        if plan is not None:
            if self._is_right(topic, plan):
                return plan
            self._forget(topic)
        refused = self.refusal(topic)
        if refused is not None:
            return self._remember(topic, Plan([], [], refused=refused))
        routes = self.table.match(topic)
        if len(routes.plain) > MATCHES_PIECE:
            return self._begin(topic, routes)
        return self._remember(topic, self._made(topic, routes))

    def refusal(self, topic: str) -> ReasonCode | None:
        """Return the reason code if no client may publish to `topic`, else None."""
        if topic.startswith("$SYS/") or topic == "$SYS":
            return ReasonCode.NOT_AUTHORIZED
        if levels_count(topic) > self._levels_max:
            return ReasonCode.TOPIC_NAME_INVALID
        return None

    def _is_right(self, topic: str, plan: Plan) -> bool:
        if plan.version == self.version:
            return True
        if self._changed.concern(topic, plan.version):
            return False
        plan.version = self.version
        return True

    def _begin(self, topic: str, routes: AllRoutes) -> Plan:
        plan = Plan([], routes.groups)
        plan.version = self.version
        plan.ops = len(routes.plain) + len(routes.groups)
        plan.deliveries = plan.ops + len(routes.plain)
        plan.size_bytes += PLACE_BYTES * len(routes.groups)
        plan.size_bytes += (GROUP_BYTES + PLACE_BYTES + IDENTIFIER_BYTES) * len(routes.plain)
        plan.weigh(self._cost)
        plan.durable, plan.is_empty, plan.burst_qos = True, False, -1
        plan.making = Making(self, topic, plan, self._pieces(topic, plan, routes))
        self._making[topic] = plan
        return plan

    def made(self, topic: str, plan: Plan) -> None:
        """Remember a finished plan, unless a filter that concerns it has changed."""
        if self._making.get(topic) is plan:
            del self._making[topic]
            if self._is_right(topic, plan):
                self._remember(topic, plan)

    def _remember(self, topic: str, plan: Plan) -> Plan:
        plan.version = self.version
        size_bytes = plan.size_bytes + _topic_bytes(topic)
        if size_bytes > self.budget.limit_bytes // 2:
            return plan  # It is as much work for its subscribers as it is to make.
        self._make_room(size_bytes)
        self.by_topic[topic] = plan
        self._order.append(topic)
        self.budget.used_bytes += size_bytes
        return plan

    def _make_room(self, size_bytes: int) -> None:
        """Forget the oldest plans until `size_bytes` are free. O(bytes), amortised."""
        budget, order = self.budget, self._order
        while budget.used_bytes + size_bytes > budget.limit_bytes and order:
            self._drop(order.popleft())
        if not order:
            self._nothing_kept()

    def _drop(self, topic: str) -> None:
        """Forget the plan of a topic that was taken from the order."""
        self._forget(topic)
        self.budget.used_bytes -= _topic_bytes(topic)

    def _forget(self, topic: str) -> None:
        plan = self.by_topic.pop(topic, None)
        if plan is not None:
            self.budget.used_bytes -= plan.size_bytes
        elif self._making:
            self._making.pop(topic, None)

    def tidy(self) -> None:
        """Check some plans, once per tick, while plans may keep ended sessions in memory."""
        if not self._ended_bytes and not self._ended_before_bytes:
            return
        order = self._order
        for _ in range(min(TIDY_PIECE, len(order))):
            topic = order.popleft()
            plan = self.by_topic.get(topic)
            if plan is not None and self._is_right(topic, plan):
                order.append(topic)
            else:
                self._drop(topic)
            self._lap_left -= 1
        if not order:
            self._nothing_kept()
        elif self._lap_left <= 0:
            self.budget.used_bytes -= self._ended_before_bytes
            self._ended_before_bytes, self._ended_bytes = self._ended_bytes, 0
            self._lap_left = len(order)

    def _nothing_kept(self) -> None:
        self.budget.used_bytes -= self._ended_bytes + self._ended_before_bytes
        self._ended_bytes = self._ended_before_bytes = self._lap_left = 0

    def make(self, topic: str) -> Plan:
        """Return a new plan of any topic, made in one time slice."""
        return self._made(topic, self.table.match(topic))

    def _made(self, topic: str, routes: AllRoutes) -> Plan:
        plan = Plan([], routes.groups)
        for _ in self._pieces(topic, plan, routes):
            pass
        return plan

    def _pieces(self, topic: str, plan: Plan, routes: AllRoutes) -> Iterator[bool]:
        """Make a plan; yield True after each piece but the last."""
        grouping, heard = Grouping(), Grouping()
        own: list[Group] = []
        plain = routes.plain
        if self.asks_rights:
            plain = []
            for piece in _cut(routes.plain, RIGHTS_PIECE):
                plain += [each for each in piece if each[0].may_receive(topic)]
                yield True
        for piece in _cut(plain):
            grouping.merge(piece)
            yield True
        for piece in _cut(grouping.merged()):
            grouping.group(piece)
            yield True
        mixed = grouping.mixed
        if mixed:
            for piece in _cut(plain):
                heard.merge([each for each in piece if each[0] in mixed and not each[1].no_local])
                yield True
            for piece in _cut(heard.merged()):
                heard.group(piece)
                yield True
            own = heard.groups()
        plan.peers, plan.shares = self.peer_routes.find(topic, plan.shared)
        plan.made(grouping, own, self._cost)
        if self.uses_log and plan.ops:
            plan.logs = self._logs(plan, grouping.ops)

    def _logs(self, plan: Plan, durable_count: int) -> bool:
        """Return True if its messages are logged.

        They are also logged for applications, and while a session is behind in the log. Such a
        session may find older messages of the topic there, and must not get newer ones before them
        through its queue.
        """
        if self.log_threshold and durable_count >= self.log_threshold:
            return True
        if self.kept_groups and any([group in self.kept_groups for group in plan.shared]):
            return True
        return any(
            [
                owner.behind or (group.qos > 0 and owner.is_logged)
                for group in plan.groups
                for owner in group.sessions
            ]
        )


def _cut(matches: list[Match], count: int = MATCHES_PIECE) -> list[list[Match]]:
    if len(matches) <= count:
        return [matches]
    return [matches[start : start + count] for start in range(0, len(matches), count)]


def cut(plan: Plan) -> Iterator[Plan]:
    """Cut a plan into pieces of `DELIVERIES_PIECE` sessions and shared groups at most."""
    groups: list[Group] = []
    room = DELIVERIES_PIECE
    for group in plan.groups:
        sessions = group.sessions
        start = 0
        while start < len(sessions):
            stop = min(len(sessions), start + room)
            groups.append(group.part(sessions[start:stop]))
            room -= stop - start
            start = stop
            if not room:
                yield Plan(groups, [], logs=plan.logs)
                groups = []
                room = DELIVERIES_PIECE
    yield Plan(groups, [], own=plan.own, logs=plan.logs, peers=plan.peers, shares=plan.shares)
    for start in range(0, len(plan.shared), DELIVERIES_PIECE):
        yield Plan([], plan.shared[start : start + DELIVERIES_PIECE], logs=plan.logs)


def _group_bytes(group: Group) -> int:
    size_bytes = GROUP_BYTES + PLACE_BYTES * len(group.sessions)
    return size_bytes + IDENTIFIER_BYTES * len(group.identifiers)


def _topic_bytes(topic: str) -> int:
    return TOPIC_BYTES + topic.__sizeof__()
