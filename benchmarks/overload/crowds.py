"""`python -m benchmarks.overload.crowds`: three crowds at the broker of this checkout and another.

The cases are those of `flowguard calibrate --check`: a crowd beside publishers without end, beside
a publisher to many subscribers, and while the store stops. Both checkouts take turns, so that each
pair of runs meets the same machine. Run `make compile` in both of them first. A broker runs
compiled if its compiled packages are up to date.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks import machine, pages
from benchmarks.checks import Grid, Report, at_most
from benchmarks.parts import Strict, Write
from flowguard import build
from flowguard.cli.descriptors import use_all_descriptors
from simulations.calibration.cases import CONNECTED_S, POLITE_S, WORK_PER_S, Values, crowds
from simulations.calibration.runs import real_run

KEY = "crowds"
TITLE = "Three crowds, before and after"
FIGURES = (CONNECTED_S, WORK_PER_S, POLITE_S)
HEADER = ("case", "figure", "before", "after", "after by before", "of each pair")
SLOWER_MAX = 1.1
console = pages.console()


@dataclass(frozen=True)
class Pairs:
    """The figures of each run, by case: first those of the other checkout, then of this one."""

    values: Mapping[str, Sequence[tuple[Values, Values]]]
    builds: str

    def ratios(self, case: str, figure: str) -> list[float]:
        return [after[figure] / before[figure] for before, after in self.values[case]]

    def row(self, case: str, figure: str) -> tuple[str, ...]:
        sides = (
            median(each[figure] for each in side) for side in zip(*self.values[case], strict=True)
        )
        ratios = self.ratios(case, figure)
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        return case, figure, *(f"{side:,.4g}" for side in sides), f"{median(ratios):.2f}", shown

    def report(self) -> Report:
        rows = [self.row(case, figure) for case in self.values for figure in FIGURES]
        checks = [
            at_most(f"{case}: {figure}, by before", ratio, SLOWER_MAX, digits=2)
            for case in self.values
            for figure in (CONNECTED_S, POLITE_S)
            for ratio in [median(self.ratios(case, figure))]
        ]
        return Report(KEY, TITLE, self.builds, tuple(checks), (Grid(HEADER, tuple(rows)),))


def python_of(interpreter: Path) -> tuple[list[str], str]:
    """The command of a checkout's interpreter (`.venv/bin/python`), and the build that it runs."""
    pure = ["env", "-u", "PYTHONPATH", str(interpreter)]
    lines = "from flowguard import build as b", "print(b.is_up_to_date(b.CHECKOUT) and b.CHECKOUT)"
    found = subprocess.check_output([*pure, "-c", "; ".join(lines)], text=True).strip()
    if found == "False":
        return pure, "pure Python"
    return ["env", f"PYTHONPATH={found}/{build.ROOMS}", str(interpreter)], "compiled"


def main(
    against: Annotated[Path, typer.Option(help="DIR/.venv/bin/python of the other checkout.")],
    runs: Annotated[int, typer.Option(min=1, help="Pairs of runs for each case.")] = 5,
    clients: Annotated[int, typer.Option(min=50, help="Clients of a crowd.")] = 5_000,
    seconds: Annotated[float, typer.Option(min=1, help="Measured time beside the crowd.")] = 10.0,
    only: Annotated[str, typer.Option(help="A part of the names of the cases.")] = "",
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Compare this checkout's broker with another one's in three crowds, by paired runs."""
    use_all_descriptors()
    sides = [python_of(python) for python in (against, Path(sys.executable))]
    values: dict[str, list[tuple[Values, Values]]] = {}
    chosen = [case for case in crowds("rocks", clients, 1, seconds) if only in case.name]
    with pages.progress(console) as progress:
        task = progress.add_task("", total=len(chosen) * runs * len(sides))
        for case in chosen:
            (scenario,) = case.scenarios
            pairs = values[case.name] = []
            for number in range(runs):
                pair: dict[int, Values] = {}
                for side in (0, 1) if number % 2 else (1, 0):
                    progress.update(task, description=case.name)
                    run = real_run("rocks", scenario, case.least_s, sides[side][0])
                    pair[side] = case.values([run])
                    progress.advance(task)
                pairs.append((pair[0], pair[1]))
    builds = f"{clients:,} clients in a crowd. Before: {sides[0][1]}. After: {sides[1][1]}."
    folder = pages.RESULTS if write else None
    if not pages.tell(Pairs(values, builds), machine.describe(), console, folder) and strict:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
