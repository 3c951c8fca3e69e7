"""Rights: what one client may publish, subscribe and receive, and what was decided of it lately.

Rights are stages in order. In each, what is denied goes before what is allowed; the first stage
that says anything of an action decides it, and what no stage allows is not allowed.

A decision is worked out once per topic and remembered: one number says for every QoS, with and
without RETAIN, as a message and as a will, whether it may be published, and whether the topic may
be received.
"""

from typing import Final, final

from flowguard.access.filters import holds, matches, meet
from flowguard.types import Publish

RECEIVE: Final = 1 << 12
"""In a decision: its messages may be received; below it stand those that may be published."""
PUBLISH: Final = RECEIVE - 1
NOTHING: Final = -1
"""Instead of a QoS: the filter may not be subscribed."""
TOPICS_MAX: Final = 32
"""Topics of a client of which the decision is remembered."""
TOPIC_CHARACTERS_MAX: Final = 128
"""Longer topics are decided each time."""
DECISION_BYTES: Final = 100
"""What one takes besides its topic, rounded up."""
RIGHTS_BYTES: Final = 300
STATEMENT_BYTES: Final = 500
PLACE_BYTES: Final = 16
"""What rights take, each statement that is this client's alone, and a place in a list of its own,
rounded up."""


def published_as(qos: int, *, retain: bool, will: bool) -> int:
    """The bit of a decision that says whether this may be published."""
    return 1 << (qos + (3 if retain else 0) + (6 if will else 0))


@final
class Principal:
    """The name that a client has proved to have; who proved nothing has none."""

    __slots__ = ("expires_at_s", "roles", "user")

    def __init__(
        self, user: str, roles: tuple[str, ...] = (), expires_at_s: float | None = None
    ) -> None:
        """`roles`: besides those that the rules give to `user`; the proof holds until
        `expires_at_s`, Unix time, None: for ever."""
        self.user = user
        self.roles = roles
        self.expires_at_s = expires_at_s


@final
class Statement:
    """One filter, and what is allowed there, or, in the list of what is denied, is not.

    `published`: what may be published, bits of a decision. Somebody may subscribe to a filter if a
    statement that `is_received` holds it; where the statement is `wide`, if they meet: the
    subscription brings what both of them match.
    """

    __slots__ = ("is_literal", "is_received", "levels", "published", "qos_max", "wide")

    def __init__(
        self,
        levels: list[str],
        published: int = 0,
        *,
        is_received: bool = False,
        wide: bool = False,
        qos_max: int = 2,
        is_literal: bool = False,
    ) -> None:
        self.levels = levels
        self.is_literal = is_literal
        """No name takes the place of %u or %c."""
        self.published = published
        self.is_received = is_received
        self.wide = wide
        self.qos_max = qos_max
        """Granted to subscriptions."""

    def with_levels(self, levels: list[str]) -> "Statement":
        """Say the same of another filter."""
        return Statement(
            levels,
            self.published,
            is_received=self.is_received,
            wide=self.wide,
            qos_max=self.qos_max,
        )


@final
class RuleStage:
    __slots__ = ("allowed", "denied")

    def __init__(self, allowed: list[Statement], denied: list[Statement]) -> None:
        self.allowed = allowed
        self.denied = denied


@final
class Headcount:
    """How many clients of a role are here."""

    __slots__ = ("connections_max", "count")

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.count = 0


@final
class Quotas:
    """Limits on a client besides those of all; None: no other than these.

    Where several roles set the same limit, the least of them holds.
    """

    __slots__ = (
        "headcounts",
        "keep_alive_max_s",
        "packet_size_max",
        "queue_messages_max",
        "subscriptions_max",
        "window_max",
    )

    def __init__(
        self,
        headcounts: list[Headcount],
        subscriptions_max: int | None = None,
        queue_messages_max: int | None = None,
        keep_alive_max_s: int | None = None,
        packet_size_max: int | None = None,
        window_max: int | None = None,
    ) -> None:
        """`headcounts`: those that the client counts in; `window_max`: cost units."""
        self.headcounts = headcounts
        self.subscriptions_max = subscriptions_max
        self.queue_messages_max = queue_messages_max
        self.keep_alive_max_s = keep_alive_max_s
        self.packet_size_max = packet_size_max
        self.window_max = window_max

    def with_more(self, other: "Quotas") -> "Quotas":
        """Return what holds for whoever is under both."""
        return Quotas(
            self.headcounts + other.headcounts,
            least(self.subscriptions_max, other.subscriptions_max),
            least(self.queue_messages_max, other.queue_messages_max),
            least(self.keep_alive_max_s, other.keep_alive_max_s),
            least(self.packet_size_max, other.packet_size_max),
            least(self.window_max, other.window_max),
        )


def least(one: int | None, other: int | None) -> int | None:
    """Return the stricter of two limits; None: there is none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


NO_QUOTAS: Final = Quotas([])


@final
class Rights:
    """The rights of one client, under one set of rules."""

    __slots__ = (
        "_is_here",
        "_remembered",
        "client_id",
        "is_application",
        "principal",
        "quotas",
        "size_bytes",
        "stages",
        "version",
    )

    def __init__(
        self,
        principal: Principal | None,
        client_id: str,
        stages: list[RuleStage],
        size_bytes: int,
        version: int,
        quotas: Quotas,
    ) -> None:
        """`size_bytes`: of what no other client shares; `version`: of the rules."""
        self.principal = principal
        self.client_id = client_id
        self.stages = stages
        self.version = version
        self.size_bytes = RIGHTS_BYTES + size_bytes
        """Without what is remembered."""
        self.quotas = quotas
        self.is_application: bool | None = None
        """Whether the first of its roles that says so makes it an application; None: none does."""
        self._remembered: dict[str, int] = {}
        self._is_here = False
        """It counts in its headcounts."""

    def is_like(self, other: "Rights | None") -> bool:
        """Whether the two are the same client's, under the same rules."""
        if other is None or other.version != self.version or other.client_id != self.client_id:
            return False
        mine, yours = self.principal, other.principal
        if mine is None or yours is None:
            return mine is yours
        return mine.user == yours.user and mine.roles == yours.roles

    # --- connections -------------------------------------------------------------------------

    def is_full_beside(self, other: "Rights | None") -> bool:
        """Whether a role has as many clients here as it may have, without the one of `other`."""
        leaving = other.quotas.headcounts if other is not None and other._is_here else []
        return any(
            [
                each.count - (each in leaving) >= each.connections_max
                for each in self.quotas.headcounts
            ]
        )

    def enter(self) -> None:
        if not self._is_here:
            self._is_here = True
            for each in self.quotas.headcounts:
                each.count += 1

    def leave(self) -> bool:
        """The client has left; whether it was here."""
        was_here, self._is_here = self._is_here, False
        if was_here:
            for each in self.quotas.headcounts:
                each.count -= 1
        return was_here

    # --- topics ------------------------------------------------------------------------------

    def remembered(self, topic: str) -> int:
        """Return what was decided of this topic; NOTHING: it is not remembered."""
        return self._remembered.get(topic, NOTHING)

    def remember(self, topic: str, decision: int) -> None:
        """Bounded by the caller: `has_room`."""
        self._remembered[topic] = decision

    def has_room(self, topic: str) -> bool:
        """Whether one more decision may be remembered."""
        return len(self._remembered) < TOPICS_MAX and len(topic) <= TOPIC_CHARACTERS_MAX

    def forget(self) -> int:
        """Forget what was decided; the bytes that it took."""
        size_bytes = sum([decision_bytes(topic) for topic in self._remembered])
        self._remembered.clear()
        return size_bytes

    def decide(self, topic: str) -> int:
        """Work out what may be done with a topic. O(statements)."""
        levels = topic.split("/")
        undecided = RECEIVE | PUBLISH
        decision = 0
        for stage in self.stages:
            denied = 0
            for statement in stage.denied:
                if matches(statement.levels, levels):
                    denied |= statement.published | (RECEIVE if statement.is_received else 0)
            allowed = 0
            for statement in stage.allowed:
                if matches(statement.levels, levels):
                    allowed |= statement.published | (RECEIVE if statement.is_received else 0)
            decision |= allowed & ~denied & undecided
            if denied & PUBLISH or allowed & PUBLISH:
                undecided &= ~PUBLISH
            if (denied | allowed) & RECEIVE:
                undecided &= ~RECEIVE
            if not undecided:
                break
        return decision

    def may_leave(self, will: Publish) -> bool:
        wanted = published_as(will.qos, retain=will.retain, will=True)
        return self.decide(will.topic) & wanted != 0

    def may_receive(self, topic: str) -> bool:
        decision = self._remembered.get(topic, NOTHING)
        if decision == NOTHING:
            decision = self.decide(topic)
        return decision & RECEIVE != 0

    # --- filters -----------------------------------------------------------------------------

    def granted_qos(self, filter: str, *, shared: bool = False) -> int:
        """The highest QoS with which it may be subscribed; NOTHING: not at all.

        What is denied inside of it is left out of what the subscription brings. A message for a
        shared subscription goes to one of its members: each must be allowed to have all of them.
        """
        levels = filter.split("/")
        for stage in self.stages:
            if shared:
                if any([each.is_received and meet(each.levels, levels) for each in stage.denied]):
                    return NOTHING
            elif any([each.is_received and holds(each.levels, levels) for each in stage.denied]):
                return NOTHING
            granted = NOTHING
            for each in stage.allowed:
                if not each.is_received or each.qos_max <= granted:
                    continue
                if holds(each.levels, levels) or (
                    each.wide and not shared and meet(each.levels, levels)
                ):
                    granted = each.qos_max
            if granted != NOTHING:
                return granted
        return NOTHING


def decision_bytes(topic: str) -> int:
    return DECISION_BYTES + topic.__sizeof__()
