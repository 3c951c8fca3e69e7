"""The groups that brokers share: all brokers with the same records agree, without a server."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.stores.kafka.groups.roster import (
    GroupChange,
    GroupRoster,
    GroupTopic,
    claim_key,
    encode_claim,
    group_topic,
    is_group_topic,
)

FILTER = "$share/g/sport/#"
ONE, TWO = (GroupTopic(group_topic("g", FILTER, each), 12) for each in (1, 2))
BROKERS = ("a", "b", "c")


def said(roster: GroupRoster, broker: str, topic: GroupTopic | None) -> GroupChange | None:
    if topic is None:
        return roster.apply(claim_key(broker, FILTER), None)
    return roster.apply(*encode_claim(broker, FILTER, topic))


def test_a_group_is_there_from_the_first_broker_with_members_to_the_last() -> None:
    roster = GroupRoster("g")
    assert roster.get(FILTER) is None
    assert said(roster, "a", ONE) == GroupChange(FILTER, None, ONE)
    assert said(roster, "b", ONE) is None
    assert said(roster, "a", None) is None
    assert roster.get(FILTER) == ONE
    assert roster.claims_of("b") == {FILTER}
    assert said(roster, "b", None) == GroupChange(FILTER, ONE, None)
    assert roster.get(FILTER) is None


def test_of_two_brokers_that_begin_a_group_at_once_the_first_decides_where_it_is() -> None:
    roster = GroupRoster("g")
    said(roster, "a", ONE)
    assert said(roster, "b", TWO) is None
    assert roster.is_right("a", FILTER)
    assert not roster.is_right("b", FILTER)
    assert roster.proposal(FILTER, TWO) == ONE
    said(roster, "b", ONE)
    assert roster.is_right("b", FILTER)


def test_a_topic_that_was_given_up_is_not_used_again() -> None:
    roster = GroupRoster("g")
    said(roster, "a", ONE)
    said(roster, "a", None)
    # Written before the end of the group was known: the topic may be about to be deleted.
    assert said(roster, "b", ONE) == GroupChange(FILTER, None, ONE)
    assert not roster.is_right("b", FILTER)
    assert roster.proposal(FILTER, TWO) == TWO
    assert said(roster, "b", TWO) == GroupChange(FILTER, ONE, TWO)
    assert roster.is_right("b", FILTER)


def test_records_that_nobody_understands_change_nothing() -> None:
    roster = GroupRoster("g")
    said(roster, "a", ONE)
    key = claim_key("b", FILTER)
    for value in (b"", b"{}", b"[]", b"[" * 100_000, b"\xff", b'{"topic": 1, "partitions": 2}'):
        assert roster.apply(key, value) is None
    assert roster.apply(key, b'{"topic": "x", "partitions": 0}') is None
    assert roster.apply(None, None) is None
    assert roster.apply(b"b plain/filter", encode_claim("b", "x", ONE)[1]) is None
    assert roster.apply(b"b $share/\xff/t", encode_claim("b", "x", ONE)[1]) is None
    assert {topic for _, _, topic in roster.claims()} == {ONE}
    assert roster.get(FILTER) == ONE


@pytest.mark.parametrize(
    "topic",
    [
        "orders",
        "g.group.orders",
        f"{ONE.topic}x",
        f"h.{ONE.topic}",
        "g.group.x.1",
        group_topic("g", "$share/g/other", 1),
        group_topic("h", FILTER, 1),
    ],
)
def test_a_topic_that_is_not_one_of_the_filters_own_is_never_a_groups(topic: str) -> None:
    """It would be deleted with the group."""
    roster = GroupRoster("g")
    assert said(roster, "a", GroupTopic(topic, 12)) is None
    assert said(roster, "a", None) is None
    said(roster, "b", ONE)
    said(roster, "b", GroupTopic(topic, 12))
    assert {topic for _, _, topic in roster.claims()} == {ONE}
    assert roster.get(FILTER) == ONE


def test_topics_of_groups_are_known_by_their_names() -> None:
    assert is_group_topic("g", ONE.topic)
    for topic in ("g.group.orders", "g.group.orders.1", f"{ONE.topic}.1", "g.groups"):
        assert not is_group_topic("g", topic)
    assert not is_group_topic("gg", ONE.topic)


@given(st.lists(st.tuples(st.sampled_from(BROKERS), st.booleans()), max_size=20))
def test_who_says_what_the_roster_proposes_has_the_topic_that_all_others_have(
    steps: Sequence[tuple[str, bool]],
) -> None:
    records: list[tuple[bytes, bytes | None]] = []
    roster, members = GroupRoster("g"), set[str]()
    for number, (broker, is_there) in enumerate(steps):
        if is_there:
            new = GroupTopic(group_topic("g", FILTER, number), 3)
            record = encode_claim(broker, FILTER, roster.proposal(FILTER, new))
            records.append(record)
            members.add(broker)
        else:
            records.append((claim_key(broker, FILTER), None))
            members.discard(broker)
        roster.apply(*records[-1])
        assert (roster.get(FILTER) is not None) == bool(members)
        assert all(roster.is_right(member, FILTER) for member in members)
    # As compaction leaves them: of each key the last one.
    late = GroupRoster("g")
    kept = dict(records)
    for key in list(dict.fromkeys(key for key, _ in reversed(records)))[::-1]:
        late.apply(key, kept[key])
    assert late.get(FILTER) == roster.get(FILTER)
