"""The choice of connections that are sent at the end of a slice (`flowguard.node.loop.sends`)."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.node.loop.sends import JOIN_S, SENDS_MAX, Sends

PUBLISHER = SENDS_MAX + 1
MANY = list(range(PUBLISHER + 1))
LATER = list(range(SENDS_MAX, -1, -1))
"""All of them but the publisher, in the order of their sends."""


def test_a_few_are_sent_to_at_once_whoever_waits() -> None:
    sends: Sends[int] = Sends()
    assert sends.next([1, 2], 0.0, more=True) == [2, 1]
    assert sends.next(MANY, 0.0, more=True) == [PUBLISHER]
    assert sends.next([1, 2], 0.0, more=True) == [2, 1]


def test_a_publisher_that_comes_after_its_subscribers_is_sent_its_puback_first() -> None:
    sends: Sends[str] = Sends()
    assert (
        sends.next(["subscriber 1", "subscriber 2", "publisher"], 0.0, more=True)[0] == "publisher"
    )
    subscribers = [f"subscriber {number}" for number in range(SENDS_MAX)]
    assert sends.next([*subscribers, "publisher"], 0.0, more=True) == ["publisher"]


def test_many_are_sent_to_by_turns_beside_the_few() -> None:
    sends: Sends[int] = Sends()
    assert sends.next(MANY, 0.0, more=False) == [PUBLISHER, *LATER[:SENDS_MAX]]
    assert sends.next([-1], 0.0, more=False) == [-1, LATER[-1]]
    assert not len(sends)


def test_many_wait_for_what_else_they_may_be_told_but_not_for_long() -> None:
    sends: Sends[int] = Sends()
    assert sends.next(MANY, 0.0, more=True) == [PUBLISHER]
    assert sends.next([], JOIN_S / 2, more=True) == []
    assert sends.next([], JOIN_S, more=True) == LATER[:SENDS_MAX]
    assert sends.next([], JOIN_S, more=True) == LATER[SENDS_MAX:]


def test_many_wait_for_nothing_once_there_is_no_more_to_tell() -> None:
    sends: Sends[int] = Sends()
    assert sends.next(MANY, 0.0, more=True) == [PUBLISHER]
    assert sends.next([], 0.0, more=False) == LATER[:SENDS_MAX]


def test_who_comes_while_others_have_their_turns_has_the_patience_of_its_own() -> None:
    sends: Sends[int] = Sends()
    sends.next(MANY, 0.0, more=True)
    sends.next([], JOIN_S, more=True)
    again = [-number for number in MANY]
    assert sends.next(again, JOIN_S, more=True) == [-PUBLISHER, LATER[-1]]
    assert sends.next([], JOIN_S, more=True) == []
    assert sends.next([], 2 * JOIN_S, more=True) == [-number for number in LATER[:SENDS_MAX]]


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * SENDS_MAX), st.floats(0, 2 * JOIN_S), st.booleans()),
        max_size=20,
    )
)
def test_everybody_is_sent_to_once_soon_and_few_in_a_slice(
    slices: list[tuple[int, float, bool]],
) -> None:
    sends: Sends[int] = Sends()
    now_s, count = 0.0, 0
    sent: list[int] = []
    for size, passes_s, more in slices:
        now_s += passes_s
        come = list(range(count, count + size))
        count += size
        turn = sends.next(come, now_s, more=more)
        assert len(turn) <= 2 * SENDS_MAX
        sent += turn
    while len(sends):
        turn = sends.next([], now_s, more=False)
        assert turn
        sent += turn
    assert sorted(sent) == list(range(count))
