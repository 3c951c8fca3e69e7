"""Plans: which sessions a topic reaches and how, worked out once per topic.

Matching a topic costs microseconds, looking a plan up costs a tenth of one. A plan merges a
session's overlapping subscriptions into one delivery of the highest QoS with all identifiers
([MQTT-3.3.4-2], [MQTT-3.3.4-4]) and gathers sessions that get the very same packet in one group,
so that it is encoded once for all of them.

Plans are forgotten by topic: a filter that changes concerns the plans of those topics that it
matches, and no others. The plan of the one topic of a filter without wildcard is forgotten at once;
whether any other is still right is asked when its topic is published to next
(`flowguard.routing.changes`). Plans that do not fit any more go one by one, the oldest first.

A session may have No Local on some of its overlapping subscriptions only. Then its own messages
reach it by the others alone, at their QoS and with their identifiers: that is what `own` is for.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, final

from flowguard.flow import Cost
from flowguard.routing import Changes, SharedGroup, SubscriptionTable, has_wildcard, levels_count
from flowguard.session.session import Session
from flowguard.types import ReasonCode, SubscriptionOptions

PLANS_MAX: Final = 65_536
DELIVERIES_PIECE: Final = 1_000
"""Of a message, in one stretch: up to four milliseconds where they are durable."""
PLANS_WEIGHT_MAX: Final = 8 * 1024 * 1024
"""Characters of topics and places of sessions in all plans together: some 64 MB."""

Table = SubscriptionTable[Session, SubscriptionOptions]
Shared = SharedGroup[Session, SubscriptionOptions]


@dataclass(slots=True)
class Group:
    """Sessions that get the same packet; `no_local`: except the publisher itself."""

    qos: int
    retain_as_published: bool
    no_local: bool
    identifiers: tuple[int, ...]
    sessions: list[Session]


@dataclass(slots=True)
class Plan:
    """Where messages of one topic go; `refused`: nowhere, and this is the answer.

    A group in `own` is for messages published by one of its sessions, and for that session only.
    A message makes so many `deliveries` (an identifier that goes with it is as much work as one
    more) and with QoS 1 or 2 so many `ops` of the store at most. `extra` is what the deliveries
    weigh above one, `is_heavy` whether either of the two weighs anything.
    """

    groups: list[Group]
    shared: list[Shared]
    refused: ReasonCode | None = None
    own: list[Group] = field(default_factory=list)
    deliveries: int = 0
    ops: int = 0
    extra: int = 0
    is_heavy: bool = False
    is_wide: bool = False
    """More than one stretch takes: `cut`."""
    version: int = 0
    """Of the subscriptions, when it was last found to be right."""
    durable: bool = field(init=False)
    is_empty: bool = field(init=False)
    solo: Session | None = field(init=False)
    """Who alone gets these messages, with no option that changes them: most topics have one."""

    def __post_init__(self) -> None:
        self.durable = self.ops > 0
        self.is_empty = not self.groups and not self.shared
        self.solo = self._solo()

    def _solo(self) -> Session | None:
        if len(self.groups) != 1 or self.shared or self.own or self.durable:
            return None
        group = self.groups[0]
        if len(group.sessions) != 1 or not group.qos or group.no_local or group.identifiers:
            return None
        return group.sessions[0]


@final
class Plans:
    """A bounded cache of plans over the node's subscription table."""

    __slots__ = (
        "_changes",
        "_cost",
        "_levels_max",
        "_order",
        "_table",
        "_weight",
        "by_topic",
        "version",
    )

    def __init__(self, table: Table, cost: Cost, *, levels_max: int) -> None:
        self._table = table
        self._cost = cost
        self._levels_max = levels_max
        self.by_topic: dict[str, Plan] = {}
        """Those whose `version` is behind may not be right any more: ask `find`."""
        self.version = 0
        """Of all filters with wildcards."""
        self._changes = Changes()
        self._order: deque[str] = deque()
        """Topics as they were remembered; one that was forgotten since may be here twice."""
        self._weight = 0

    def changed(self, filter: str) -> None:
        """Somebody has subscribed to `filter`, or no longer; `$share/` and name left out."""
        if has_wildcard(filter):
            self._changes.note(filter)
            self.version = self._changes.version
        else:
            self._forget(filter)

    def find(self, topic: str) -> Plan:
        """The plan of `topic`; made anew only if a subscription that matches it has changed."""
        plan = self.by_topic.get(topic)
        if plan is not None:
            if plan.version == self.version:
                return plan
            if not self._changes.concern(topic, plan.version):
                plan.version = self.version
                return plan
            self._forget(topic)
        return self._remember(topic)

    def _remember(self, topic: str) -> Plan:
        plan = self._make(topic)
        plan.version = self.version
        order = self._order
        self._weight += _weight(topic, plan)
        while order and (len(order) >= PLANS_MAX or self._weight > PLANS_WEIGHT_MAX):
            self._forget(order.popleft())
        self.by_topic[topic] = plan
        order.append(topic)
        return plan

    def _forget(self, topic: str) -> None:
        plan = self.by_topic.pop(topic, None)
        if plan is not None:
            self._weight -= _weight(topic, plan)

    def _make(self, topic: str) -> Plan:
        if topic.startswith("$SYS/") or topic == "$SYS":
            return Plan([], [], refused=ReasonCode.NOT_AUTHORIZED)
        if levels_count(topic) > self._levels_max:
            return Plan([], [], refused=ReasonCode.TOPIC_NAME_INVALID)
        return self.make(topic)

    def make(self, topic: str) -> Plan:
        """A fresh plan, whatever the topic."""
        routes = self._table.match(topic)
        groups, mixed = _grouped(routes.plain)
        own: list[Group] = []
        if mixed:
            heard = [pair for pair in routes.plain if pair[0] in mixed and not pair[1].no_local]
            own, _ = _grouped(heard)
        deliveries = ops = len(routes.groups)
        for group in groups:
            deliveries += len(group.sessions) + len(group.identifiers)
            if group.qos:
                ops += sum([session.durable for session in group.sessions])
        return Plan(
            groups,
            routes.groups,
            own=own,
            deliveries=deliveries,
            ops=ops,
            extra=self._cost.of(deliveries, 0) - 1,
            is_heavy=self._cost.of(deliveries, 0, ops) > 1,
            is_wide=deliveries > DELIVERIES_PIECE,
        )


def cut(plan: Plan) -> Iterator[Plan]:
    """The same in pieces of `DELIVERIES_PIECE` sessions and shared groups at most."""
    groups: list[Group] = []
    room = DELIVERIES_PIECE
    for group in plan.groups:
        sessions = group.sessions
        start = 0
        while start < len(sessions):
            stop = min(len(sessions), start + room)
            groups.append(
                Group(
                    group.qos,
                    group.retain_as_published,
                    group.no_local,
                    group.identifiers,
                    sessions[start:stop],
                )
            )
            room -= stop - start
            start = stop
            if not room:
                yield Plan(groups, [])
                groups = []
                room = DELIVERIES_PIECE
    yield Plan(groups, [], own=plan.own)
    for start in range(0, len(plan.shared), DELIVERIES_PIECE):
        yield Plan([], plan.shared[start : start + DELIVERIES_PIECE])


def _weight(topic: str, plan: Plan) -> int:
    return len(topic) + plan.deliveries


def _grouped(
    matches: list[tuple[Session, SubscriptionOptions]],
) -> tuple[list[Group], set[Session]]:
    """Groups, and the sessions with No Local on some of their subscriptions but not on all.

    O(matches), however many of them are one session's.
    """
    merged: dict[Session, SubscriptionOptions] = {}
    extra: dict[Session, list[int]] = {}
    mixed: set[Session] = set()
    for session, options in matches:
        first = merged.get(session)
        if first is None:
            merged[session] = options
            continue
        several = extra.get(session)
        if several is None:
            several = extra[session] = [first.identifier] if first.identifier else []
        if options.identifier:
            several.append(options.identifier)
        if first.no_local != options.no_local:
            mixed.add(session)
        merged[session] = SubscriptionOptions(
            qos=max(first.qos, options.qos),
            no_local=first.no_local or options.no_local,
            retain_as_published=first.retain_as_published or options.retain_as_published,
        )
    groups: dict[tuple[int, bool, bool, tuple[int, ...]], Group] = {}
    for session, options in merged.items():
        several = extra.get(session)
        one = (options.identifier,) if options.identifier else ()
        identifiers = one if several is None else tuple(several)
        key = (options.qos, options.retain_as_published, options.no_local, identifiers)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(*key, sessions=[])
        group.sessions.append(session)
    return list(groups.values()), mixed
