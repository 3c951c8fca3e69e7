"""Pairs of crowds: medians, ratios and verdicts of made-up figures, and the other interpreter."""

import sys
from pathlib import Path

from benchmarks.overload.crowds import Pairs, python_of
from simulations.calibration.cases import CONNECTED_S, POLITE_S, WORK_PER_S, Values


def values(connected_s: float, work_per_s: float, polite_s: float) -> Values:
    return {CONNECTED_S: connected_s, WORK_PER_S: work_per_s, POLITE_S: polite_s}


def test_pairs_are_judged_by_the_median_of_their_ratios() -> None:
    pairs = [
        (values(1.0, 100.0, 0.1), values(1.0, 300.0, 0.2)),
        (values(2.0, 200.0, 0.1), values(2.2, 800.0, 0.1)),
        (values(3.0, 100.0, 0.2), values(9.0, 100.0, 0.1)),
    ]
    report = Pairs({"a crowd": pairs}, "made up").report()
    assert [check.passed for check in report.checks] == [True, True]
    rows = report.grids[0].rows
    assert rows[1] == ("a crowd", WORK_PER_S, "100", "300", "3.00", "3.00, 4.00, 1.00")
    slower = Pairs({"a crowd": pairs[2:]}, "made up").report()
    assert [check.passed for check in slower.checks] == [False, True]


def test_an_interpreter_runs_the_packages_of_its_own_checkout() -> None:
    words, built = python_of(Path(sys.executable))
    assert words[-1] == sys.executable
    assert built in ("compiled", "pure Python")
    assert ("-u" in words) == (built == "pure Python")
