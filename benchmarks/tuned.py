"""`python -m benchmarks.tuned`: limits that `flowguard tune --like` finds, tried on a real broker.

A broker with a bad limit is recorded in a crowd. The limits that follow from that run serve the
same crowd again. With the defaults the tuner must refuse.
"""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks import machine, pages
from benchmarks.checks import Check, Grid, Report
from benchmarks.parts import Strict, Write
from flowguard.cli.descriptors import use_all_descriptors
from simulations.calibration.process import broker_process
from simulations.calibration.runs import driven
from simulations.scenario import PopulationPlan, RetryPlan, Scenario
from spark_analysis.intervals import Interval, interval
from spark_sweep.tuning import EXIT_REFUSED

KEY = "tuned"
TITLE = "Limits found by simulation, on a real broker"
BAD = {"connects_in_process_max": 1}
SHARE, BETTER, RUNS, SECONDS = 0.99, 0.8, 5, 20.0
RETRY = RetryPlan(kind="backoff", first_s=0.5, max_s=4.0)
console = pages.console()


def crowd(clients: int, seed: int) -> Scenario:
    plan = PopulationPlan(clients=clients, start_s=1.0, start_over_s=0.2, timeout_s=2, retry=RETRY)
    return Scenario(duration_s=SECONDS, seed=seed, populations={"crowd": plan})


def connected_s(clients: int, seed: int, flow: Mapping[str, Any], folder: Path | None) -> float:
    """Return the time until 99 % of the clients of a crowd are connected to a real broker."""
    telemetry = {} if folder is None else {"record_dir": str(folder)}
    with broker_process("rocks", {"telemetry": telemetry, "flow": flow}) as broker:
        found = driven(broker, crowd(clients, seed), SECONDS / 2).connected_s["crowd"]
        broker.finish()
    needed = ceil(SHARE * clients)
    return found[needed - 1] if len(found) >= needed else float("inf")


def tuned(like: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "flowguard", "tune", "--like", str(like)]
    words += ["--objective", "connect", "--out", str(out)]
    return subprocess.run(words, capture_output=True, text=True)


@dataclass(frozen=True)
class Tuned:
    before: Interval
    after: Interval
    flow: Mapping[str, Any]
    is_refused: bool
    """Whether the tuner finds no better limits than the defaults."""
    says: str
    """The sentence of the tuner on them."""

    def report(self) -> Report:
        low, high = self.before.mean - self.before.half, self.after.mean + self.after.half
        limits = ", ".join(f"{key} = {value}" for key, value in self.flow.items())
        ratio = self.after.mean / self.before.mean
        checks = (
            Check("99 % connected, of before", f"{ratio:.2f}x", f"≤ {BETTER}x", ratio <= BETTER),
            Check("intervals are apart", f"{high:.2f} s, {low:.2f} s", "before", high < low),
            Check("the defaults", self.says, "a refusal", self.is_refused),
        )
        rows = tuple(
            (name, f"{each.mean:.2f} ± {each.half:.2f} s, n = {each.count}")
            for name, each in (("recorded", self.before), (limits, self.after))
        )
        text = f"A crowd at a broker with {BAD}; then with limits of `flowguard tune --like`."
        return Report(KEY, TITLE, text, checks, (Grid(("limits", "99 % connected after"), rows),))


def main(
    clients: Annotated[int, typer.Option(min=50, help="Clients of the crowd.")] = 1_500,
    runs: Annotated[int, typer.Option(min=2, help="Runs before and after.")] = RUNS,
    write: Write = False,
    strict: Strict = False,
) -> None:
    """Tune a badly limited real broker by its recorded run, and try the limits on it."""
    use_all_descriptors()
    with TemporaryDirectory(prefix="tuned-") as name:
        folder = Path(name)
        seeds = range(1, runs + 1)
        console.print("recording a bad limit")
        before = [connected_s(clients, seed, BAD, folder / f"bad-{seed}") for seed in seeds]
        console.print("tuning")
        found = tuned(folder / "bad-1", folder / "limits")
        if found.returncode:
            console.print(found.stderr, markup=False)
            raise typer.Exit(1)
        flow = tomllib.loads((folder / "limits" / "limits.toml").read_text())["flow"]
        console.print(f"trying {flow}", markup=False)
        after = [connected_s(clients, seed, BAD | flow, None) for seed in seeds]
        console.print("tuning the defaults")
        connected_s(clients, 1, {}, folder / "good")
        refused = tuned(folder / "good", folder / "none")
        says = refused.stderr.partition("\npage: ")[0].splitlines()
        low, high = interval(after), interval(before)
        assert low is not None
        assert high is not None
        result = Tuned(high, low, flow, refused.returncode == EXIT_REFUSED, says[-1])
        passed = pages.tell(result, machine.describe(), console, pages.RESULTS if write else None)
    if strict and not passed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
