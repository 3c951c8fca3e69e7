"""Verdicts: may a client publish to a topic or subscribe to a filter, and by which rule?

They decide as `rights` does, and name the statement that decides.
"""

from dataclasses import dataclass
from typing import Final

from flowguard.access.filters import holds, matches, meet
from flowguard.access.rights import NOTHING, PUBLISH, Principal, Rights, Statement, published_as
from flowguard.access.rules import Rules

NO_RULES: Final = "no rules are configured: clients may use all topics"
OWN_TOPICS: Final = "only the broker publishes below $SYS/"


@dataclass(frozen=True, slots=True)
class AclVerdict:
    allowed: bool
    rule: str
    """The rule with its file, or the reason if no rule decides."""
    roles: tuple[str, ...] = ()
    """Roles of the client."""
    qos_max: int | None = None
    """Highest QoS of an allowed subscription."""


def publish_verdict(
    rules: Rules | None,
    principal: Principal | None,
    client_id: str,
    topic: str,
    *,
    qos: int = 0,
    retain: bool = False,
) -> AclVerdict:
    if topic == "$SYS" or topic.startswith("$SYS/"):
        return AclVerdict(allowed=False, rule=OWN_TOPICS)
    if rules is None:
        return AclVerdict(allowed=True, rule=NO_RULES)
    wanted = published_as(qos, retain=retain, will=False)
    allowed, rule = _publishing(rules.rights(principal, client_id), topic.split("/"), wanted)
    roles = _roles(rules, principal)
    if rule is not None and not allowed and not rule.published & wanted:
        return AclVerdict(allowed, f"{rule.origin}, but not with this QoS or RETAIN", roles)
    return AclVerdict(allowed, _text(rule, roles), roles)


def _publishing(rights: Rights, levels: list[str], wanted: int) -> tuple[bool, Statement | None]:
    """Return the decision and its statement: the first stage with a rule for publishing decides."""
    for stage in rights.stages:
        denied, allowed = (
            [each for each in some if each.published & PUBLISH and matches(each.levels, levels)]
            for some in (stage.denied, stage.allowed)
        )
        for is_allowed, some in ((False, denied), (True, allowed)):
            for each in some:
                if each.published & wanted:
                    return is_allowed, each
        if denied or allowed:
            return False, (allowed + denied)[0]
    return False, None


def subscribe_verdict(
    rules: Rules | None,
    principal: Principal | None,
    client_id: str,
    filter: str,
    *,
    shared: bool = False,
) -> AclVerdict:
    """`filter` is without `$share/` and name if it is `shared`."""
    if rules is None:
        return AclVerdict(allowed=True, rule=NO_RULES, qos_max=2)
    rights = rules.rights(principal, client_id)
    qos_max, rule = _subscribing(rights, filter.split("/"), shared=shared)
    roles = _roles(rules, principal)
    if qos_max == NOTHING:
        return AclVerdict(False, _text(rule, roles), roles)
    return AclVerdict(True, _text(rule, roles), roles, qos_max)


def _subscribing(
    rights: Rights, levels: list[str], *, shared: bool
) -> tuple[int, Statement | None]:
    """Return the highest QoS or NOTHING, and the statement that decides; `Rights.granted_qos`."""
    for stage in rights.stages:
        denies = meet if shared else holds
        for each in stage.denied:
            if each.is_received and denies(each.levels, levels):
                return NOTHING, each
        granted = [
            each
            for each in stage.allowed
            if each.is_received
            and (
                holds(each.levels, levels)
                or (each.wide and not shared and meet(each.levels, levels))
            )
        ]
        if granted:
            best = max(granted, key=lambda each: each.qos_max)
            return best.qos_max, best
    return NOTHING, None


def _roles(rules: Rules, principal: Principal | None) -> tuple[str, ...]:
    return tuple(role.name for role in rules.roles_of(principal))


def _text(rule: Statement | None, roles: tuple[str, ...]) -> str:
    if rule is not None:
        return rule.origin
    return f"no rule of its roles matches: {', '.join(roles)}" if roles else "it has no role"
