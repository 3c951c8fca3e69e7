"""Tables: what was compared, as CSV and Parquet; the same runs give the same bytes."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_analysis.intervals import Interval
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.judging import CandidateFigures
from spark_analysis.tuner.scoring import Scores
from spark_analysis.tuner.trials import DEFAULTS, Trials

_FIGURES: Final = (
    ("score_ratio", pa.float64()),
    ("score_low_ratio", pa.float64()),
    ("score_high_ratio", pa.float64()),
    ("worst_value", pa.float64()),
    ("breaches", pa.string()),
)
_CANDIDATES: Final = pa.schema(
    [
        ("candidate", pa.string()),
        ("changes_count", pa.int32()),
        ("is_recommended", pa.bool_()),
        ("missing_count", pa.int32()),
        ("problem", pa.string()),
        *((f"held_out_{name}", type_) for name, type_ in _FIGURES),
        *((f"training_{name}", type_) for name, type_ in _FIGURES),
    ]
)
_SCENARIOS: Final = pa.schema(
    [
        ("candidate", pa.string()),
        ("scenario", pa.string()),
        ("part", pa.string()),
        *_FIGURES[:3],
    ]
)
_PAIRS: Final = pa.schema(
    [
        ("candidate", pa.string()),
        ("scenario", pa.string()),
        ("load", pa.string()),
        ("seed", pa.int64()),
        ("part", pa.string()),
        ("ratio", pa.float64()),
        ("run_id", pa.string()),
        ("defaults_run_id", pa.string()),
        ("command", pa.string()),
    ]
)


def choice_tables(choice: Choice, trials: Trials, scores: Scores) -> dict[str, pa.Table]:
    """The tables by name; ratios to the defaults, more is better."""
    return {
        "candidates": _candidates(choice),
        "scenarios": _scenarios(choice),
        "pairs": _pairs(choice, trials, scores),
    }


def _candidates(choice: Choice) -> pa.Table:
    return _table(
        _CANDIDATES,
        (
            (
                *(one.candidate.name, len(one.candidate.limits), one is choice.chosen),
                *(one.missing, one.problem),
                *_figures(one.held_out),
                *_figures(one.training),
            )
            for one in choice.judged
        ),
    )


def _table(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Rows of values in the order of the columns."""
    records = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(records, schema=schema)


def _figures(figures: CandidateFigures | None) -> Sequence[Any]:
    """The values of `_FIGURES`."""
    if figures is None:
        return (None,) * len(_FIGURES)
    return (*_score(figures.score), figures.worst, "; ".join(map(str, figures.breaches)))


def _score(score: Interval | None) -> Sequence[float | None]:
    ends = (None,) * 3 if score is None else (score.mean, score.low, score.high)
    return tuple(map(_ratio, ends))


def _ratio(log_ratio: float | None) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else math.exp(log_ratio)


def _scenarios(choice: Choice) -> pa.Table:
    rows = (
        (one.candidate.name, scenario, part, *_score(found))
        for one in choice.judged
        for part, figures in (("held out", one.held_out), ("training", one.training))
        if figures is not None
        for scenario, found in sorted(figures.by_scenario.items())
    )
    return _table(_SCENARIOS, rows)


def _pairs(choice: Choice, trials: Trials, scores: Scores) -> pa.Table:
    rows = []
    seeds = {seed: "training" for seed in choice.split.training}
    seeds |= {seed: "held out" for seed in choice.split.held_out}
    for one in choice.judged:
        keys = [(one.candidate, place, seed) for place in choice.places for seed in sorted(seeds)]
        for key in keys if not one.missing else ():
            _, place, seed = key
            is_seen = place in choice.training_places
            part = seeds[seed] if is_seen or seeds[seed] == "held out" else "unused"
            run_id, defaults_id = trials.run_ids[key], trials.run_ids[DEFAULTS, place, seed]
            where = (one.candidate.name, place.scenario, place.load, seed, part)
            ratio = _ratio(scores.pair(*key))
            rows.append((*where, ratio, run_id, defaults_id, trials.commands[run_id]))
    return _table(_PAIRS, rows)
