"""Loads: which live runs had about the same load.

The load of a simulated run is in its parameters. A broker's load is what its clients bring,
which no setting of it knows: a run of an idle night is no rival of one that stood a storm. So
the load is a parameter of a live run, in classes; runs of different classes are different
parameter sets.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_analysis.grains import ALL
from spark_analysis.runs.examination import BROKER, Run

LIMIT: Final = "flow."
"""Parameters with this prefix are limits; all others of a simulated run are part of its load."""
LOAD: Final = "load."
"""The prefix of a live run's load among its parameters."""
ALIKE_RATIO: Final = 1.2
"""Rates of a class differ by this factor at most."""
ALIKE_PER_S: Final = 1.0
"""Rates that are apart by no more than this are alike as well."""
_RATES: Final = {
    "connects_per_s": "attempts_count",
    "publishes_per_s": "acknowledged_count",
}


def loads(runs: Sequence[Run], seconds: DataFrame) -> dict[str, str]:
    """The load of each live run: `load.connects_per_s=20, load.publishes_per_s=6530`; `seconds` as
    by_second."""
    live = {run.run_id: run.end["ended_s"] for run in runs if run.run["source"] == BROKER}
    if not live:
        return {}
    counts = (
        seconds.where(F.col("population") == ALL)
        .groupBy("run_id")
        .agg(*(F.sum(column).alias(name) for name, column in _RATES.items()))
        .collect()
    )
    counts = [row for row in counts if row["run_id"] in live]
    texts: dict[str, list[str]] = {row["run_id"]: [] for row in counts}
    for name in _RATES:
        rates = {row["run_id"]: (row[name] or 0) / max(live[row["run_id"]], 1.0) for row in counts}
        for run_id, text in classes(rates).items():
            texts[run_id].append(f"{LOAD}{name}={text}")
    return {run_id: ", ".join(pairs) for run_id, pairs in texts.items()}


def classes(rates: Mapping[str, float]) -> dict[str, str]:
    """The class of each key's rate: the middle of the rates that are alike, as text."""
    named: dict[str, str] = {}
    alike: list[str] = []
    for key in sorted(rates, key=lambda key: (rates[key], key)):
        if alike and not _are_alike(rates[alike[0]], rates[key]):
            named |= _named(alike, rates)
            alike = []
        alike.append(key)
    return named | _named(alike, rates)


def _are_alike(lower: float, upper: float) -> bool:
    return upper - lower <= max(ALIKE_PER_S, (ALIKE_RATIO - 1) * lower)


def _named(alike: list[str], rates: Mapping[str, float]) -> dict[str, str]:
    middle = median(rates[key] for key in alike) if alike else 0.0
    text = f"{middle:.0f}" if middle >= 100 else f"{middle:.3g}"
    return dict.fromkeys(alike, text)
