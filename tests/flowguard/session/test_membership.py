"""Identifiers of what is lent to a member: each is free, and none is searched for twice."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.records import QOS_1_IDS, Delivery
from flowguard.session.membership import Membership


def test_a_search_goes_on_where_the_last_one_ended() -> None:
    """Ten thousand groups want the same identifier for their first message."""
    membership = Membership()
    inflight: dict[int, Delivery | None] = {}
    wanted = QOS_1_IDS - 1
    found = []
    for _ in range(1_000):
        packet_id = membership.unused_id(wanted, inflight)
        found.append(packet_id)
        inflight[packet_id] = None
    assert found == [wanted, QOS_1_IDS, *range(QOS_1_IDS - 2, QOS_1_IDS - 1_000, -1)]
    # Those above have been looked at, and are not looked at again before all others were.
    del inflight[QOS_1_IDS - 10]
    assert membership.unused_id(wanted, inflight) == QOS_1_IDS - 1_000


@given(
    steps=st.lists(st.tuples(st.integers(1, QOS_1_IDS), st.booleans()), max_size=200),
)
def test_what_is_found_is_free_and_what_is_free_and_wanted_is_found(
    steps: list[tuple[int, bool]],
) -> None:
    membership = Membership()
    inflight: dict[int, Delivery | None] = {}
    for wanted, is_done in steps:
        packet_id = membership.unused_id(wanted, inflight)
        assert 1 <= packet_id <= QOS_1_IDS
        assert packet_id not in inflight
        assert packet_id == wanted or wanted in inflight
        inflight[packet_id] = None
        if is_done:
            del inflight[packet_id]
