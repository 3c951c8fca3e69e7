"""Tables: what was compared, as CSV and Parquet; the same runs give the same bytes."""

import math
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.judging import CandidateFigures, Judged
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
    rows = [
        {
            "candidate": one.candidate.name,
            "changes_count": len(one.candidate.limits),
            "is_recommended": one is choice.chosen,
            "missing_count": one.missing,
            "problem": one.problem,
            **_figures("held_out", one.held_out),
            **_figures("training", one.training),
        }
        for one in choice.judged
    ]
    return pa.Table.from_pylist(rows, schema=_CANDIDATES)


def _figures(part: str, figures: CandidateFigures | None) -> dict[str, Any]:
    if figures is None:
        return {}
    score = figures.score
    ends = (None,) * 3 if score is None else (score.mean, score.low, score.high)
    values = (*map(_ratio, ends), figures.worst, "; ".join(map(str, figures.breaches)))
    return {f"{part}_{name}": value for (name, _), value in zip(_FIGURES, values, strict=True)}


def _ratio(log_ratio: float | None) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else math.exp(log_ratio)


def _scenarios(choice: Choice) -> pa.Table:
    rows = [
        {
            "candidate": one.candidate.name,
            "scenario": scenario,
            "part": part,
            "score_ratio": _ratio(found.mean),
            "score_low_ratio": _ratio(found.low),
            "score_high_ratio": _ratio(found.high),
        }
        for one in choice.judged
        for part, figures in _parts(one).items()
        for scenario, found in sorted(figures.by_scenario.items())
    ]
    return pa.Table.from_pylist(rows, schema=_SCENARIOS)


def _parts(one: Judged) -> Mapping[str, CandidateFigures]:
    parts = {"held out": one.held_out, "training": one.training}
    return {part: figures for part, figures in parts.items() if figures is not None}


def _pairs(choice: Choice, trials: Trials, scores: Scores) -> pa.Table:
    rows = []
    seeds = {seed: "training" for seed in choice.split.training}
    seeds |= {seed: "held out" for seed in choice.split.held_out}
    for one in choice.judged:
        keys = [(one.candidate, place, seed) for place in choice.places for seed in sorted(seeds)]
        for key in keys if not one.missing else ():
            score = scores.pair(*key)
            _, place, seed = key
            is_seen = place in choice.training_places
            part = seeds[seed] if is_seen or seeds[seed] == "held out" else "unused"
            rows.append(
                {
                    "candidate": one.candidate.name,
                    "scenario": place.scenario,
                    "load": place.load,
                    "seed": seed,
                    "part": part,
                    "ratio": _ratio(score),
                    "run_id": trials.run_ids[key],
                    "defaults_run_id": trials.run_ids[DEFAULTS, place, seed],
                    "command": trials.commands[trials.run_ids[key]],
                }
            )
    return pa.Table.from_pylist(rows, schema=_PAIRS)
