"""Figures in a table, and against their bounds; and a control, which has to miss them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.checks import Check, Grid

from .cases import Runs
from .figures import Figure, Figures
from .probe import Observed


@dataclass(frozen=True)
class Column:
    figure: Figure | None
    unit: str = ""
    digits: int = 1
    of_case: Callable[[str, Observed], float | None] | None = None
    """Instead of `figure`, where it depends on the case."""
    not_of: str = ""
    """A case that has no such figure."""

    def text(self, runs: Runs, case: str, policy: str) -> str:
        if case == self.not_of:
            return "-"
        figure = self.figure if self.of_case is None else partial(self.of_case, case)
        assert figure is not None
        return runs.figures(case, figure, policy).text(self.unit, self.digits)


def table(runs: Runs, case: str, columns: Mapping[str, Column]) -> Grid:
    """A row for each case, of which `case` says what it is, and policy."""
    header = (case, "policy", *columns)
    return Grid(
        header,
        tuple(
            (name, policy, *(column.text(runs, name, policy) for column in columns.values()))
            for name, policy in runs.observed
        ),
    )


def at_most(what: str, figures: Figures, bound: float, unit: str = "", digits: int = 1) -> Check:
    """The mean of the seeds; what never happened is more than any bound."""
    passed = figures.mean is not None and figures.mean <= bound
    return Check(what, figures.text(unit, digits), f"≤ {bound:,.{digits}f}{unit}", passed)


def at_least(what: str, figures: Figures, bound: float, unit: str = "", digits: int = 1) -> Check:
    """The mean of the seeds; what never happened is less than any bound."""
    passed = figures.mean is not None and figures.mean >= bound
    return Check(what, figures.text(unit, digits), f"≥ {bound:,.{digits}f}{unit}", passed)


def none_of(what: str, figures: Figures) -> Check:
    """In no seed."""
    count = sum(value or 0.0 for value in figures.values)
    return Check(what, f"{count:,.0f}", "0", not count)


def misses(check: Check, control: str) -> Check:
    """The same of a control: where it meets the bound the experiment proves nothing."""
    words = f"control, {control}: {check.what}"
    return Check(words, check.reached, f"not {check.bound}", not check.passed)


def held(runs: Runs) -> Check:
    """The invariants of docs/explain/overload.md, looked at after every step under flowguard."""
    return invariants(runs.all_of("flowguard"))


def invariants(observed: Sequence[Observed]) -> Check:
    violations = [run.violation for run in observed if run.violation]
    reached = "all hold" if not violations else f"{len(violations)} runs: {violations[0]}"
    return Check("invariants, after every step", reached, "all hold", not violations)
