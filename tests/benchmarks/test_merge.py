"""The benchmark of merging measures what it says, and judges it."""

import pytest

from benchmarks.conditions import Conditions
from benchmarks.store import merging
from benchmarks.store.merging import Merged, Merges


def figures(entries: int, seconds: float, peak_mib: float) -> Merged:
    return Merged(entries, entries * 3 // 2, seconds, peak_mib, 1.0, 1.5)


@pytest.mark.slow
def test_two_sizes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "GOAL_ENTRIES", 8_000)
    found = merging.measure(Conditions(None, seconds=30.0))
    assert [(run.entries, run.result) for run in found.runs] == [(400, 600), (4_000, 6_000)]
    assert found.report().grids[0].rows[1][:2] == ("2 x 4,000", "6,000")


@pytest.mark.parametrize(
    ("measured", "passed"),
    [
        ((figures(100_000, 1.0, 100), figures(1_000_000, 11.0, 120)), True),
        ((figures(1_000_000, 20.1, 100),), False),
        ((figures(100_000, 0.5, 100), figures(1_000_000, 8.0, 120)), False),
        ((figures(100_000, 1.0, 100), figures(1_000_000, 11.0, 165)), False),
    ],
    ids=["good", "slow", "not linear", "memory grows"],
)
def test_what_is_good_enough(measured: tuple[Merged, ...], passed: bool) -> None:
    assert Merges(measured).report().passed is passed
