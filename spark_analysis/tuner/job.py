"""Job: runs and an objective in, limits out; all of `flowguard tune` except its output to
people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.progress import Progress

from spark_analysis.analysis import AllDamaged, with_whole_runs
from spark_analysis.job import JobFailed, examined, reasons
from spark_analysis.runs.examination import LeftOut, Run
from spark_analysis.session import SessionFailed, spark_session
from spark_analysis.tables import FOLDER, left_out_table, write_tables
from spark_analysis.tuner import page
from spark_analysis.tuner.choosing import choose
from spark_analysis.tuner.limits_file import conclusion, write_limits
from spark_analysis.tuner.measuring import Measures, asked, measure
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.page import TuningRecord
from spark_analysis.tuner.scoring import Scores
from spark_analysis.tuner.tables import choice_tables
from spark_analysis.tuner.trials import Trials, sort_out

ASSUMED: Final = (
    "Simulated clients retry and time out as their scenarios define it. No packet is lost, except "
    "by faults of a scenario."
)


class PolicyUnknown(Exception):
    """No run has the policy; the text lists the known ones."""


@dataclass(frozen=True, slots=True)
class TuningResult:
    tuning: TuningRecord
    limits: Path | None
    """The file of limits, or None if nothing is recommended."""
    page: Path

    def lines(self) -> list[str]:
        lines = [conclusion(self.tuning.choice), ASSUMED]
        if self.limits is not None:
            lines.append(f"limits: {self.limits}")
        return [*reasons(self.tuning.left_out), *lines, f"page: {self.page}"]


def run_tuning(
    paths: Sequence[Path],
    objective: Objective,
    out: Path,
    master: str,
    *,
    policy: str,
    memory_gib: int | None,
    partitions: int,
    progress: Progress,
) -> TuningResult:
    """Tune by the runs in `paths`. Raises PolicyUnknown, JobFailed, JavaMissing."""
    task = progress.add_task("examining runs", total=None)
    runs, left_out = examined(paths, progress, task)
    _check_policy(runs, policy)
    steps = 2 + len(asked(objective))
    progress.update(task, description="starting Spark", total=steps, completed=0)

    def tell(step: str) -> None:
        progress.update(task, description=step, advance=1)

    try:
        with spark_session(
            master, memory_gib=memory_gib, partitions=partitions, log=out / "spark.log"
        ) as spark:

            def ask(whole: Sequence[Run], not_read: Sequence[LeftOut]) -> TuningRecord:
                trials = sort_out(whole, policy)
                used = set(trials.run_ids.values())
                tried = [run for run in whole if run.run_id in used]
                measures = (
                    measure(spark, tried, objective, tell) if tried else Measures({}, frozenset())
                )
                return tune(objective, trials, measures, not_read)

            tuning = with_whole_runs(spark, runs, left_out, ask, tell)
    except (AllDamaged, SessionFailed) as failure:
        raise JobFailed(str(failure)) from failure
    return write(tuning, out)


def _check_policy(runs: Sequence[Run], policy: str) -> None:
    found = sorted({str(run.run["policy"]) for run in runs})
    if policy not in found:
        raise PolicyUnknown(f"--policy {policy}: no run is of it; there are {', '.join(found)}")


def tune(
    objective: Objective, trials: Trials, measures: Measures, left_out: Sequence[LeftOut]
) -> TuningRecord:
    in_order = tuple(sorted(left_out, key=lambda one: (one.path, one.reason)))
    return TuningRecord(choose(objective, trials, measures), trials, measures, in_order)


def write(tuning: TuningRecord, out: Path) -> TuningResult:
    choice, trials = tuning.choice, tuning.trials
    scores = Scores(choice.objective, trials, tuning.measures)
    tables = choice_tables(choice, trials, scores)
    write_tables({**tables, "left_out": left_out_table(tuning.left_out)}, out / FOLDER)
    page.write_page(tuning, out / page.NAME)
    return TuningResult(tuning, write_limits(choice, trials, out), out / page.NAME)
