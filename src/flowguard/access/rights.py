"""Rights: what one client may publish, subscribe to and receive, and cached decisions.

Rights are stages in order. In each stage, denials go before permissions. The first stage with a
rule for an action decides it; an action without a rule is not allowed.

A decision is computed once per topic and cached. One number holds all of it: for every QoS, with
and without RETAIN, as a message and as a will, whether it may be published, and whether the topic
may be received.
"""

from typing import Final, final

from flowguard.access.filters import holds, matches, meet
from flowguard.types import Publish

RECEIVE: Final = 1 << 12
"""Bit of a decision: messages may be received. The lower bits are for publishing."""
PUBLISH: Final = RECEIVE - 1
NOTHING: Final = -1
"""A value instead of a QoS: the filter may not be subscribed to."""
TOPICS_MAX: Final = 32
"""Maximum number of topics of a client with a cached decision."""
TOPIC_CHARACTERS_MAX: Final = 128
"""Maximum length of a topic with a cached decision, characters."""
DECISION_BYTES: Final = 100
"""Memory of a decision besides its topic, rounded up."""
RIGHTS_BYTES: Final = 300
STATEMENT_BYTES: Final = 500
PLACE_BYTES: Final = 16
"""Memory of rights, of each statement that belongs to one client only, and of an entry in a list of
its own, rounded up."""


def published_as(qos: int, *, retain: bool, will: bool) -> int:
    """Return the bit of a decision for publishing such a message."""
    return 1 << (qos + (3 if retain else 0) + (6 if will else 0))


@final
class Principal:
    """The proved name of a client; a client without a proof has none."""

    __slots__ = ("expires_at_s", "roles", "user")

    def __init__(
        self, user: str, roles: tuple[str, ...] = (), expires_at_s: float | None = None
    ) -> None:
        """`roles`: in addition to those that the rules give to `user`; the proof is valid until
        `expires_at_s`, Unix time, or for ever if None."""
        self.user = user
        self.roles = roles
        self.expires_at_s = expires_at_s


@final
class Statement:
    """One filter, with what is allowed there or, in a list of denials, forbidden.

    `published`: bits of a decision that may be published. A client may subscribe to a filter if a
    statement with `is_received` contains it. A `wide` statement only needs to overlap with it; the
    subscription then gets the messages that match both.
    """

    __slots__ = ("is_literal", "is_received", "levels", "origin", "published", "qos_max", "wide")

    def __init__(
        self,
        levels: list[str],
        published: int = 0,
        *,
        is_received: bool = False,
        wide: bool = False,
        qos_max: int = 2,
        is_literal: bool = False,
        origin: str = "",
    ) -> None:
        self.levels = levels
        self.origin = origin
        """The file and the rule, as it is written there."""
        self.is_literal = is_literal
        """True if %u and %c are not replaced by names."""
        self.published = published
        self.is_received = is_received
        self.wide = wide
        self.qos_max = qos_max
        """Maximum QoS of subscriptions."""

    def with_levels(self, levels: list[str]) -> "Statement":
        """Return the same statement for another filter."""
        return Statement(
            levels,
            self.published,
            is_received=self.is_received,
            wide=self.wide,
            qos_max=self.qos_max,
            origin=self.origin,
        )


@final
class RuleStage:
    __slots__ = ("allowed", "denied")

    def __init__(self, allowed: list[Statement], denied: list[Statement]) -> None:
        self.allowed = allowed
        self.denied = denied


@final
class Headcount:
    """Number of connected clients of a role."""

    __slots__ = ("connections_max", "count")

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.count = 0


@final
class Quotas:
    """Limits for a client besides the general ones, or None for each that it does not set.

    If several roles set the same limit, the smallest applies.
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
        """`headcounts`: the counts that include the client; `window_max`: cost units."""
        self.headcounts = headcounts
        self.subscriptions_max = subscriptions_max
        self.queue_messages_max = queue_messages_max
        self.keep_alive_max_s = keep_alive_max_s
        self.packet_size_max = packet_size_max
        self.window_max = window_max

    def with_more(self, other: "Quotas") -> "Quotas":
        """Return the stricter limits of both."""
        return Quotas(
            self.headcounts + other.headcounts,
            least(self.subscriptions_max, other.subscriptions_max),
            least(self.queue_messages_max, other.queue_messages_max),
            least(self.keep_alive_max_s, other.keep_alive_max_s),
            least(self.packet_size_max, other.packet_size_max),
            least(self.window_max, other.window_max),
        )


def least(one: int | None, other: int | None) -> int | None:
    """Return the stricter of two limits, or None without a limit."""
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
        """`size_bytes`: memory that no other client shares; `version`: version of the rules."""
        self.principal = principal
        self.client_id = client_id
        self.stages = stages
        self.version = version
        self.size_bytes = RIGHTS_BYTES + size_bytes
        """Memory without the cached decisions, bytes."""
        self.quotas = quotas
        self.is_application: bool | None = None
        """True if it is an application, by the first of its roles that sets this, or None."""
        self._remembered: dict[str, int] = {}
        self._is_here = False
        """True while it counts in its headcounts."""

    def is_like(self, other: "Rights | None") -> bool:
        """Return True if both belong to the same client, under the same rules."""
        if other is None or other.version != self.version or other.client_id != self.client_id:
            return False
        mine, yours = self.principal, other.principal
        if mine is None or yours is None:
            return mine is yours
        return mine.user == yours.user and mine.roles == yours.roles

    # --- connections -------------------------------------------------------------------------

    def is_full_beside(self, other: "Rights | None") -> bool:
        """Return True if a role has its maximum of clients, not counting the client of `other`."""
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
        """End the client's connection; return True if it was counted."""
        was_here, self._is_here = self._is_here, False
        if was_here:
            for each in self.quotas.headcounts:
                each.count -= 1
        return was_here

    # --- topics ------------------------------------------------------------------------------

    def remembered(self, topic: str) -> int:
        """Return the cached decision for a topic, or NOTHING."""
        return self._remembered.get(topic, NOTHING)

    def remember(self, topic: str, decision: int) -> None:
        """Cache a decision; the caller must check `has_room`."""
        self._remembered[topic] = decision

    def has_room(self, topic: str) -> bool:
        """Return True if one more decision may be cached."""
        return len(self._remembered) < TOPICS_MAX and len(topic) <= TOPIC_CHARACTERS_MAX

    def forget(self) -> int:
        """Drop the cached decisions; return their memory in bytes."""
        size_bytes = sum([decision_bytes(topic) for topic in self._remembered])
        self._remembered.clear()
        return size_bytes

    def decide(self, topic: str) -> int:
        """Compute what may be done with a topic. O(statements)."""
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
        """Return the highest QoS for subscribing to a filter, or NOTHING if that is not allowed.

        Denied topics inside of it are left out of the subscription. A message for a shared
        subscription goes to one of its members, so each of them must be allowed to receive all
        messages.
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
