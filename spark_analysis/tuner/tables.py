"""Tables: what was compared, as CSV and Parquet; the same runs give the same bytes."""

import math
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from spark_analysis.intervals import Interval
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.scoring import CandidateFigures, Scores
from spark_analysis.tuner.trials import DEFAULTS, Trials

_SCORE: Final = tuple((f"score{end}_ratio", pa.float64()) for end in ("", "_low", "_high"))
_CANDIDATES: Final = pa.schema(
    [
        ("candidate", pa.string()),
        ("changes_count", pa.int32()),
        ("is_recommended", pa.bool_()),
        ("missing_count", pa.int32()),
        ("problem", pa.string()),
        *(
            (f"{part}_{name}", type_)
            for part in ("held_out", "training")
            for name, type_ in (
                *_SCORE,
                ("worst_value", pa.float64()),
                ("breaches", pa.string()),
            )
        ),
    ]
)
_SCENARIOS: Final = pa.schema(
    [("candidate", pa.string()), ("scenario", pa.string()), ("part", pa.string()), *_SCORE]
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
    found = {
        "candidates": (_candidates(choice), _CANDIDATES),
        "scenarios": (_scenarios(choice), _SCENARIOS),
        "pairs": (_pairs(choice, trials, scores), _PAIRS),
    }
    return {
        name: pa.Table.from_pylist(list(rows), schema=schema)
        for name, (rows, schema) in found.items()
    }


def _candidates(choice: Choice) -> Iterator[dict[str, Any]]:
    for one in choice.judged:
        yield {
            "candidate": one.candidate.name,
            "changes_count": len(one.candidate.limits),
            "is_recommended": one is choice.chosen,
            "missing_count": one.missing,
            "problem": one.problem,
            **_figures("held_out", one.held_out),
            **_figures("training", one.training),
        }


def _figures(part: str, figures: CandidateFigures | None) -> dict[str, Any]:
    if figures is None:
        return {}
    words = "; ".join(map(str, figures.breaches))
    found = {**_score(figures.score), "worst_value": figures.worst, "breaches": words}
    return {f"{part}_{name}": value for name, value in found.items()}


def _score(score: Interval | None) -> dict[str, float | None]:
    if score is None:
        return {}
    ends = (score.mean, score.low, score.high)
    return {name: _ratio(end) for (name, _), end in zip(_SCORE, ends, strict=True)}


def _ratio(log_ratio: float | None) -> float | None:
    return None if log_ratio is None or math.isinf(log_ratio) else math.exp(log_ratio)


def _scenarios(choice: Choice) -> Iterator[dict[str, Any]]:
    for one in choice.judged:
        for part, figures in (("held out", one.held_out), ("training", one.training)):
            for scenario, score in ({} if figures is None else figures.by_scenario).items():
                where = {"candidate": one.candidate.name, "scenario": scenario, "part": part}
                yield {**where, **_score(score)}


def _pairs(choice: Choice, trials: Trials, scores: Scores) -> Iterator[dict[str, Any]]:
    parts = dict.fromkeys(choice.split.training, "training")
    parts |= dict.fromkeys(choice.split.held_out, "held out")
    for one in choice.judged:
        keys = [(one.candidate, place, seed) for place in choice.places for seed in sorted(parts)]
        for candidate, place, seed in keys if not one.missing else ():
            is_used = place in choice.training_places or parts[seed] == "held out"
            run_id = trials.run_ids[candidate, place, seed]
            yield {
                "candidate": candidate.name,
                "scenario": place.scenario,
                "load": place.load,
                "seed": seed,
                "part": parts[seed] if is_used else "unused",
                "ratio": _ratio(scores.pair(candidate, place, seed)),
                "run_id": run_id,
                "defaults_run_id": trials.run_ids[DEFAULTS, place, seed],
                "command": trials.commands[run_id],
            }
