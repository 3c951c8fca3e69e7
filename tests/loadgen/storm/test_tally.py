import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.storm import ConnectTally, LatencyHistogram, TrafficTally


@given(
    values=st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200),
    percent=st.sampled_from([0, 1, 50, 90, 99, 100]),
)
def test_percentiles_are_the_nearest_rank_to_two_percent(values: list[float], percent: int) -> None:
    latencies = LatencyHistogram()
    for value in values:
        latencies.record(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    found = latencies.percentile_s(percent)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * 1.02 * (1 + 1e-9)


def test_the_maximum_is_exact() -> None:
    latencies = LatencyHistogram()
    for value in (0.1, 0.123456, 0.01):
        latencies.record(value)
    assert latencies.percentile_s(100) == 0.123456
    assert latencies.result_ms()["max"] == 123.456


def test_without_values_there_is_no_percentile() -> None:
    assert LatencyHistogram().percentile_s(50) is None
    assert LatencyHistogram().result_ms() == {"p50": None, "p90": None, "p99": None, "max": None}


@pytest.mark.parametrize("instant_s", [0.0, -1e-3, 1e-9])
def test_what_is_too_short_to_measure_still_counts(instant_s: float) -> None:
    latencies = LatencyHistogram()
    latencies.record(instant_s)
    assert latencies.count == 1
    assert latencies.percentile_s(50) == max(0.0, instant_s)


def test_results_are_plain_values_with_readable_codes() -> None:
    tally = ConnectTally(10)
    tally.refused[0x87] = 2
    result = tally.result()
    assert result["refused"] == {"0x87": 2}
    assert json.loads(json.dumps(result)) == result


def test_a_storm_that_sent_nothing_has_rates_of_zero() -> None:
    result = TrafficTally().result()
    assert result["sent_per_s"] == 0
    assert json.loads(json.dumps(result)) == result


@given(
    after_s=st.lists(st.floats(1e-6, 1e3), max_size=120),
    clients=st.integers(1, 120),
    percent=st.sampled_from([50, 99, 100]),
)
def test_a_share_of_all_clients_is_in_when_the_last_of_it_is(
    after_s: list[float], clients: int, percent: int
) -> None:
    """A share is one of all clients, even if many are not connected."""
    tally = ConnectTally(clients)
    for each_s in after_s[:clients]:
        tally.after_start.record(each_s)
    needed = math.ceil(clients * percent / 100)
    found = tally.share_in_s(percent)
    if needed > len(after_s[:clients]):
        assert found is None
    else:
        assert found is not None
        exact = sorted(after_s[:clients])[needed - 1]
        assert exact * (1 - 1e-9) <= found <= exact * 1.02 * (1 + 1e-9)
