"""Job: runs and an objective in, limits out; all of `flowguard tune` except its output to
people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_analysis.analysis import Tell, with_whole_runs
from spark_analysis.job import SparkJob, reasons
from spark_analysis.runs.examination import LeftOut, Run
from spark_analysis.tables import FOLDER, left_out_table, write_tables
from spark_analysis.terminal import wrong_argument
from spark_analysis.tuner import page
from spark_analysis.tuner.choosing import choose
from spark_analysis.tuner.limits_file import conclusion, write_limits
from spark_analysis.tuner.measuring import Measures, asked, measure
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.page import TuningRecord
from spark_analysis.tuner.tables import choice_tables
from spark_analysis.tuner.trials import Trials, sort_out

ASSUMED: Final = (
    "Simulated clients retry and time out as their scenarios define it. No packet is lost, except "
    "by faults of a scenario."
)


@dataclass(frozen=True, slots=True)
class TuningResult:
    tuning: TuningRecord
    limits: Path | None
    """The file of limits, or None if nothing is recommended."""
    page: Path

    def lines(self) -> list[str]:
        """Lines for the terminal: what was left out, the choice, what it assumes, and the files."""
        assumed = [ASSUMED] if self.tuning.trials.are_simulated else []
        limits = [] if self.limits is None else [f"limits: {self.limits}"]
        left_out = reasons(self.tuning.left_out)
        return [*left_out, conclusion(self.tuning.choice), *assumed, *limits, f"page: {self.page}"]


def run_tuning(job: SparkJob, objective: Objective, policy: str) -> TuningResult:
    """Tune by the runs of the job. Raises JobFailed."""
    runs, left_out = job.examined()
    found = sorted({str(run.run["policy"]) for run in runs})
    if policy not in found:
        why = f"--policy {policy}: no run is of it; there are {', '.join(found)}"
        raise wrong_argument(why)

    def ask(spark: SparkSession, tell: Tell) -> TuningRecord:
        def of_whole(whole: Sequence[Run], not_read: Sequence[LeftOut]) -> TuningRecord:
            trials = sort_out(whole, policy)
            used = set(trials.run_ids.values())
            tried = [run for run in whole if run.run_id in used]
            nothing = Measures({}, frozenset())
            measures = measure(spark, tried, objective, tell) if tried else nothing
            return tune(objective, trials, measures, not_read)

        return with_whole_runs(spark, runs, left_out, of_whole, tell)

    return write(job.on_spark(2 + len(asked(objective)), ask), job.out)


def tune(
    objective: Objective, trials: Trials, measures: Measures, left_out: Sequence[LeftOut]
) -> TuningRecord:
    """The choice, with everything that its page shows."""
    in_order = tuple(sorted(left_out, key=lambda one: (one.path, one.reason)))
    return TuningRecord(choose(objective, trials, measures), trials, measures, in_order)


def write(tuning: TuningRecord, out: Path) -> TuningResult:
    """Write tables, page and limits below `out`."""
    choice, trials = tuning.choice, tuning.trials
    tables = choice_tables(choice, trials, tuning.scores)
    write_tables({**tables, "left_out": left_out_table(tuning.left_out)}, out / FOLDER)
    page.write_page(tuning, out / page.NAME)
    return TuningResult(tuning, write_limits(choice, trials, out), out / page.NAME)
