"""Which groups brokers have together: all who read the same records agree, without a server."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flowguard.stores.kafka.group_roster import (
    GroupChange,
    GroupRoster,
    GroupTopic,
    claim_key,
    encode_claim,
)

FILTER = "$share/g/sport/#"
ONE, TWO = GroupTopic("g.group.x.1", 12), GroupTopic("g.group.x.2", 12)
BROKERS = ("a", "b", "c")


def said(roster: GroupRoster, broker: str, topic: GroupTopic | None) -> GroupChange | None:
    if topic is None:
        return roster.apply(claim_key(broker, FILTER), None)
    return roster.apply(*encode_claim(broker, FILTER, topic))


def test_a_group_is_there_from_the_first_broker_with_members_to_the_last() -> None:
    roster = GroupRoster()
    assert roster.get(FILTER) is None
    assert said(roster, "a", ONE) == GroupChange(FILTER, None, ONE)
    assert said(roster, "b", ONE) is None
    assert said(roster, "a", None) is None
    assert roster.get(FILTER) == ONE
    assert roster.claims_of("b") == {FILTER}
    assert said(roster, "b", None) == GroupChange(FILTER, ONE, None)
    assert not roster.topics()


def test_of_two_brokers_that_begin_a_group_at_once_the_first_decides_where_it_is() -> None:
    roster = GroupRoster()
    said(roster, "a", ONE)
    assert said(roster, "b", TWO) is None
    assert roster.is_right("a", FILTER)
    assert not roster.is_right("b", FILTER)
    assert roster.proposal(FILTER, TWO) == ONE
    said(roster, "b", ONE)
    assert roster.is_right("b", FILTER)


def test_a_topic_that_was_given_up_is_not_used_again() -> None:
    roster = GroupRoster()
    said(roster, "a", ONE)
    said(roster, "a", None)
    # Written before it was heard that the group has ended: somebody may be deleting the topic.
    assert said(roster, "b", ONE) == GroupChange(FILTER, None, ONE)
    assert not roster.is_right("b", FILTER)
    assert roster.proposal(FILTER, TWO) == TWO
    assert said(roster, "b", TWO) == GroupChange(FILTER, ONE, TWO)
    assert roster.is_right("b", FILTER)


def test_records_that_nobody_understands_change_nothing() -> None:
    roster = GroupRoster()
    said(roster, "a", ONE)
    key = claim_key("b", FILTER)
    for value in (b"", b"{}", b"[]", b"\xff", b'{"topic": 1, "partitions": 2}'):
        assert roster.apply(key, value) is None
    assert roster.apply(key, b'{"topic": "x", "partitions": 0}') is None
    assert roster.apply(None, None) is None
    assert roster.apply(b"b plain/filter", encode_claim("b", "x", ONE)[1]) is None
    assert roster.filters() == [FILTER]


@given(st.lists(st.tuples(st.sampled_from(BROKERS), st.booleans()), max_size=20))
def test_who_says_what_the_roster_proposes_has_the_topic_that_all_others_have(
    steps: Sequence[tuple[str, bool]],
) -> None:
    records: list[tuple[bytes, bytes | None]] = []
    roster, members = GroupRoster(), set[str]()
    for number, (broker, is_there) in enumerate(steps):
        if is_there:
            new = GroupTopic(f"g.group.x.{number}", 3)
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
    late = GroupRoster()
    kept = dict(records)
    for key in list(dict.fromkeys(key for key, _ in reversed(records)))[::-1]:
        late.apply(key, kept[key])
    assert late.get(FILTER) == roster.get(FILTER)
