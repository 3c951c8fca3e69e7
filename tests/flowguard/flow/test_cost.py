"""What packets weigh."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow.cost import Cost

COST = Cost(FlowSettings(cost_deliveries=100, cost_bytes=1_000, window_max=50))
sizes = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("deliveries", "size_bytes", "cost"),
    [(0, 0, 1), (99, 999, 1), (100, 0, 2), (0, 1_000, 2), (250, 3_500, 6), (10**6, 0, 50)],
)
def test_deliveries_and_bytes_weigh_beyond_what_an_ordinary_packet_has(
    deliveries: int, size_bytes: int, cost: int
) -> None:
    assert COST.of(deliveries, size_bytes) == cost


def test_an_ordinary_publish_weighs_one_by_default() -> None:
    assert Cost(FlowSettings()).of(deliveries=10, size_bytes=1_024) == 1


@given(sizes, sizes, sizes)
def test_more_work_never_weighs_less_and_no_packet_more_than_a_window(
    deliveries: int, size_bytes: int, more: int
) -> None:
    cost = COST.of(deliveries, size_bytes)
    assert 1 <= cost <= 50
    assert COST.of(deliveries + more, size_bytes) >= cost
    assert COST.of(deliveries, size_bytes + more) >= cost
