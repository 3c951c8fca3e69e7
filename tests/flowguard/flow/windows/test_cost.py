"""The weights of packets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow.windows.cost import Cost

COST = Cost(
    FlowSettings(cost_deliveries=100, cost_bytes=1_000, unfinished_max=50, journal_ops_max=2_000)
)
sizes = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("deliveries", "size_bytes", "ops", "cost"),
    [
        (0, 0, 0, 1),
        (99, 999, 9, 1),
        (100, 0, 0, 2),
        (0, 1_000, 0, 2),
        (0, 0, 10, 2),
        (250, 3_500, 35, 9),
        (10**6, 0, 0, 10_001),
    ],
)
def test_deliveries_bytes_and_operations_weigh_beyond_what_an_ordinary_packet_has(
    deliveries: int, size_bytes: int, ops: int, cost: int
) -> None:
    assert COST.of(deliveries, size_bytes, ops) == cost


def test_an_ordinary_publish_weighs_one_by_default() -> None:
    assert Cost(FlowSettings()).of(deliveries=10, size_bytes=1_024, ops=3) == 1


@given(sizes, sizes, sizes, sizes)
def test_more_work_never_weighs_less(deliveries: int, size_bytes: int, ops: int, more: int) -> None:
    cost = COST.of(deliveries, size_bytes, ops)
    assert cost >= 1
    assert COST.of(deliveries + more, size_bytes, ops) >= cost
    assert COST.of(deliveries, size_bytes + more, ops) >= cost
    assert COST.of(deliveries, size_bytes, ops + more) >= cost


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.lists(st.integers(0, 10**5), max_size=9))
def test_clients_take_turns_before_the_journal_is_full_of_what_they_had_it_do(
    ops_max: int, units_max: int, packets: list[int]
) -> None:
    cost = Cost(FlowSettings(journal_ops_max=ops_max, unfinished_max=units_max))
    if sum(packets) >= ops_max:
        # Only clients with a turn are admitted now.
        assert sum(cost.of(0, 0, ops) for ops in packets) >= min(units_max, ops_max)
