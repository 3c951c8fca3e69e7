"""Verdicts are the decisions of `rights`, and name their rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.access.filters import is_filter
from flowguard.access.mosquitto import parse_acl
from flowguard.access.rights import NOTHING, Principal, published_as
from flowguard.access.rules_toml import parse_toml
from flowguard.access.verdicts import publish_verdict, subscribe_verdict
from tests.flowguard.access.test_rules import ACL, FORMS

LIMITED = """
[roles.device]
users = ["*"]
publish = ["a/#", {topic = "b/+", qos_max = 1, retain = false}, {topic = "b/c", retain = false}]
subscribe = [{topic = "a/#", qos_max = 0}, {topic = "a/b", qos_max = 1}]
receive = ["b/+"]
deny_publish = ["a/no"]
deny_receive = ["b/no/#"]
"""
RULES = {**FORMS, "limited": parse_toml(LIMITED, "acl.toml")}
LEVELS = st.sampled_from(["a", "b", "c", "no", "both", "x", "secret", "ann", "out", "news", "+"])
FILTERS = st.lists(LEVELS, min_size=1, max_size=3).map(lambda levels: [*levels]) | st.lists(
    LEVELS, max_size=2
).map(lambda levels: [*levels, "#"])
PRINCIPALS = st.sampled_from([None, Principal("ann"), Principal("bob"), Principal("x", ("guest",))])


@given(
    form=st.sampled_from(list(RULES)),
    principal=PRINCIPALS,
    levels=st.lists(LEVELS.filter(lambda level: level != "+"), min_size=1, max_size=3),
    qos=st.integers(0, 2),
    retain=st.booleans(),
)
def test_verdict_of_a_publish_is_that_of_the_rights(
    form: str, principal: Principal | None, levels: list[str], qos: int, retain: bool
) -> None:
    rules, topic = RULES[form], "/".join(levels)
    verdict = publish_verdict(rules, principal, "c", topic, qos=qos, retain=retain)
    decision = rules.rights(principal, "c").decide(topic)
    assert verdict.allowed == (decision & published_as(qos, retain=retain, will=False) != 0)
    assert verdict.rule


@given(
    form=st.sampled_from(list(RULES)), principal=PRINCIPALS, levels=FILTERS, shared=st.booleans()
)
def test_verdict_of_a_subscription_is_that_of_the_rights(
    form: str, principal: Principal | None, levels: list[str], shared: bool
) -> None:
    assert is_filter(levels)
    rules, filter = RULES[form], "/".join(levels)
    verdict = subscribe_verdict(rules, principal, "c", filter, shared=shared)
    granted = rules.rights(principal, "c").granted_qos(filter, shared=shared)
    assert verdict.allowed == (granted != NOTHING)
    assert verdict.qos_max == (granted if verdict.allowed else None)


@pytest.mark.parametrize(
    ("topic", "qos", "allowed", "rule"),
    [
        ("a/x", 2, True, "acl.toml: roles.device.publish: a/#"),
        ("a/no", 0, False, "acl.toml: roles.device.deny_publish: a/no"),
        ("b/x", 2, False, "acl.toml: roles.device.publish: b/+, but not with this QoS or RETAIN"),
        ("b/c", 2, True, "acl.toml: roles.device.publish: b/c"),
        ("c", 0, False, "no rule of its roles matches: device"),
        ("$SYS/a", 0, False, "only the broker publishes below $SYS/"),
    ],
)
def test_verdict_names_the_rule_of_a_toml_file(
    topic: str, qos: int, allowed: bool, rule: str
) -> None:
    verdict = publish_verdict(RULES["limited"], Principal("u"), "c", topic, qos=qos)
    assert (verdict.allowed, verdict.rule) == (allowed, rule)


def test_verdict_names_the_line_of_a_mosquitto_file() -> None:
    rules = parse_acl(ACL, "acl")
    number = ACL.splitlines().index("topic deny secret/#") + 1
    verdict = publish_verdict(rules, Principal("bob"), "c", "secret/x")
    assert verdict.rule == f"acl, line {number}: topic deny secret/#"
    number = ACL.splitlines().index("pattern read devices/%u/down/+") + 1
    verdict = subscribe_verdict(rules, Principal("ann"), "c", "devices/ann/down/x")
    assert verdict.rule == f"acl, line {number}: pattern read devices/%u/down/+"
    assert verdict.roles == ("user ann", "patterns")


def test_verdict_without_a_role_or_rules() -> None:
    verdict = publish_verdict(RULES["limited"], None, "c", "a")
    assert (verdict.allowed, verdict.rule) == (False, "it has no role")
    assert publish_verdict(None, None, "c", "a").allowed
    assert subscribe_verdict(None, None, "c", "#").qos_max == 2
