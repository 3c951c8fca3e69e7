"""Laws of the observer:

1. Events count for one tick, percentiles for a second or since a restart, levels until the next
   report.
2. The sojourn is the least of the started packets; if none was, the age of the oldest waiting one.
3. A percentile is within 5 % of the exact one from 0.1 ms to 32 s.
4. Its memory does not grow with the number of reports, or with time.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowguard.flow.load.observer import Observer, RecentPercentile
from flowguard.flow.load.signals import Sample, StoreState

DURATIONS_S = st.floats(0.0, 0.000_2) | st.floats(0.000_1, 0.1) | st.floats(0.1, 40.0)


def take(observer: Observer, now_s: float = 0.0) -> Sample:
    return observer.take(now_s, 0, 0)


def close(found: float, exact: float) -> bool:
    """Within 5 %; below 0.1 ms zero, above 32 s the end of the scale."""
    if exact <= 0.000_1:
        return found == 0.0
    return abs(found / min(exact, 32.1) - 1) <= 0.05


class Percentiles(RuleBasedStateMachine):
    """A percentile against a list of everything that was reported."""

    @initialize(origin=st.sampled_from([-1_000_000, 0, 17, 10_000_000]))
    def clock_starts(self, origin: int) -> None:
        self.percentile = RecentPercentile()
        self.subwindow = origin
        self.first = origin
        self.reports: list[tuple[int, float]] = []

    @property
    def now_s(self) -> float:
        return (self.subwindow + 0.5) / 10 if self.subwindow >= 0 else (self.subwindow - 0.5) / 10

    @rule(subwindows=st.sampled_from([1, 1, 1, 2, 5, 9, 10, 11, 1_000]))
    def time_passes(self, subwindows: int) -> None:
        self.subwindow += subwindows

    @rule(durations_s=st.lists(DURATIONS_S, min_size=1, max_size=20))
    def report(self, durations_s: list[float]) -> None:
        for duration_s in durations_s:
            self.percentile.add(duration_s, self.now_s)
            self.reports.append((self.subwindow, duration_s))

    @rule()
    def restart(self) -> None:
        self.percentile.restart(self.now_s)
        self.first = self.subwindow + 1

    @invariant()
    def answer_is_close_to_the_exact_one(self) -> None:
        if not hasattr(self, "percentile"):
            return
        first = max(self.subwindow - 9, min(self.first, self.subwindow - 1))
        if not any(at >= first for at, _ in self.reports):
            first = self.subwindow - 9
        recent = sorted(s for at, s in self.reports if at >= first)
        exact = recent[math.ceil(0.9 * len(recent)) - 1] if recent else 0.0
        assert close(self.percentile.p90_s(self.now_s), exact)


TestPercentiles = Percentiles.TestCase


def test_a_percentile_is_as_large_after_a_million_reports_as_before() -> None:
    percentile = RecentPercentile()

    def cells() -> int:
        return len(percentile._counts) + sum(len(row) for row in percentile._rows)

    before = cells()
    for number in range(10_000):
        percentile.add(number / 100, number / 1_000)
    assert cells() == before <= 1_500


def test_drift_counts_by_the_time_it_took_and_not_by_the_number_of_turns() -> None:
    """A turn that takes most of a second is most of that second, a short one is nothing."""
    observer = Observer()
    for number in range(400):
        observer.drift(0.001, number / 1_000)
    observer.drift(0.06, 0.5)
    assert take(observer, 0.5).drift_s < 0.06
    observer.drift(0.5, 0.9)
    assert take(observer, 0.9).drift_s == pytest.approx(0.5, rel=0.05)


def test_a_loop_that_was_late_once_and_idle_otherwise_has_not_drifted() -> None:
    observer = Observer()
    observer.drift(0.09, 0.1)
    assert take(observer, 0.5).drift_s == 0.0
    observer.drift(0.09, 0.6)
    assert take(observer, 0.6).drift_s == pytest.approx(0.09, rel=0.05)


def test_drifts_and_commits_count_for_a_second_and_apart() -> None:
    observer = Observer()
    observer.drift(0.11, 0.0)
    observer.committed(0.2, 0.0)
    for now_s in (0.1, 0.95):
        sample = take(observer, now_s)
        assert sample.drift_s == pytest.approx(0.11, rel=0.05)
        assert sample.commit_s == pytest.approx(0.2, rel=0.05)
    sample = take(observer, 1.05)
    assert (sample.drift_s, sample.commit_s) == (0.0, 0.0)


def test_after_a_restart_percentiles_are_of_what_came_since() -> None:
    """Two sub-windows later, however much there was before; what is missing is still no drift."""
    observer = Observer()
    for number in range(10):
        observer.drift(0.1, number / 10)
        observer.committed(0.2, number / 10)
    observer.restart(0.95)
    assert take(observer, 0.96).drift_s == pytest.approx(0.1, rel=0.05)
    observer.drift(0.05, 1.05)
    observer.committed(0.06, 1.05)
    observer.drift(0.05, 1.15)
    sample = take(observer, 1.15)
    assert sample.drift_s == pytest.approx(0.05, rel=0.05)
    assert sample.commit_s == pytest.approx(0.06, rel=0.05)
    observer.restart(1.15)
    observer.drift(0.015, 1.25)
    sample = take(observer, 1.35)
    assert sample.drift_s == 0.0
    assert sample.commit_s == pytest.approx(0.2, rel=0.05), (
        "no commit since: it is as slow as it was"
    )


def test_who_is_kept_waiting_counts_as_drift_for_one_tick() -> None:
    observer = Observer()
    observer.drift(0.2, 0.0)
    for wait_s in (0.1, 0.3, 0.2):
        observer.kept_waiting(wait_s)
    assert take(observer).drift_s == 0.3
    assert take(observer).drift_s == pytest.approx(0.2, rel=0.05)


def test_time_that_goes_back_a_little_loses_nothing() -> None:
    percentile = RecentPercentile()
    percentile.add(0.1, 5.0)
    percentile.add(0.1, 4.8)
    assert percentile.p90_s(4.0) == pytest.approx(0.1, rel=0.05)
    assert percentile.p90_s(6.05) == 0.0


def test_a_commit_under_way_counts_with_its_age_for_a_store_that_hangs() -> None:
    observer = Observer()
    observer.committed(0.01, 0.0)
    observer.committing(0.3)
    observer.committing(0.2)
    assert take(observer).commit_s == 0.3
    assert take(observer).commit_s == pytest.approx(0.01, rel=0.05)
    observer.committing(0.001)
    assert take(observer).commit_s == pytest.approx(0.01, rel=0.05)


@given(st.lists(st.floats(0.0, 10.0)), st.lists(st.floats(0.0, 10.0)))
def test_the_luckiest_packet_is_the_sojourn_and_else_the_oldest_that_waits(
    sojourns_s: list[float], ages_s: list[float]
) -> None:
    observer = Observer()
    for age_s in ages_s:
        observer.waiting(age_s)
    for sojourn_s in sojourns_s:
        observer.started(sojourn_s)
    expected = min(sojourns_s) if sojourns_s else max(ages_s, default=0.0)
    assert take(observer).sojourn_s == expected
    assert take(observer).sojourn_s == 0.0


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 10.0)), max_size=10))
def test_the_response_is_the_mean_over_the_packets_of_the_tick(
    batches: list[tuple[int, float]],
) -> None:
    observer = Observer()
    for count, mean_s in batches:
        observer.finished(count, count * mean_s)
    sample = take(observer)
    assert sample.completed == sum(count for count, _ in batches)
    total_s = sum(count * mean_s for count, mean_s in batches)
    assert sample.response_s * sample.completed == pytest.approx(total_s)
    assert (take(observer).completed, take(observer).response_s) == (0, 0.0)


def test_the_store_counts_with_its_worst_state_since_the_last_tick() -> None:
    observer = Observer()
    for state in (StoreState.STOPPED, StoreState.DELAYED):
        observer.store(state)
    assert take(observer).store_state is StoreState.STOPPED
    assert take(observer).store_state is StoreState.DELAYED
    observer.store(StoreState.FLOWING)
    assert take(observer).store_state is StoreState.DELAYED
    assert take(observer).store_state is StoreState.FLOWING


def test_levels_hold_until_they_are_reported_anew() -> None:
    observer = Observer()
    observer.replication(0.2)
    observer.memory(0.5, 0.1)
    for _ in range(3):
        sample = take(observer)
        assert sample.replication_age_s == 0.2
        assert (sample.memory_share, sample.unfinished_share) == (0.5, 0.1)
    observer.replication(0.0)
    observer.memory(0.4, 0.0)
    sample = take(observer)
    assert sample.replication_age_s == 0.0
    assert (sample.memory_share, sample.unfinished_share) == (0.4, 0.0)


def test_a_sample_has_the_time_and_the_numbers_of_the_caller() -> None:
    sample = Observer().take(12.5, 7, 3)
    assert sample == Sample(12.5, in_process=7, clients_active=3)
