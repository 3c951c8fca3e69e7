from hypothesis import given
from hypothesis import strategies as st

from loadgen.storm.subscriber import Flow


@given(numbers=st.lists(st.integers(0, 30), max_size=60))
def test_the_books_agree_with_a_set(numbers: list[int]) -> None:
    flow = Flow()
    seen: set[int] = set()
    for number in numbers:
        assert flow.arrived(number) == (number not in seen)
        seen.add(number)
    assert flow.missing(31) == set(range(31)) - seen


def test_messages_in_order_need_no_memory() -> None:
    flow = Flow()
    for number in range(10_000):
        flow.arrived(number)
    assert not flow.holes
