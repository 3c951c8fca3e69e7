"""limits.toml: the limits for `flowguard serve --limits`, with the reason for each.

Table `flow` has the values. Table `evidence` has their objective and the runs behind them, and a
table per limit. A comment over each value explains the same to a person.
"""

import json
import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from textwrap import wrap
from typing import Final

from spark_analysis.report.words import count
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.evidence import Effect, effects, in_size
from spark_analysis.tuner.judging import Judged, percent
from spark_analysis.tuner.trials import DEFAULTS, Candidate, Trials

NAME: Final = "limits.toml"
_WIDTH: Final = 96
_DIGITS: Final = 5


def write_limits(choice: Choice, trials: Trials, directory: Path) -> Path | None:
    """Write `NAME`, or remove an older one: limits that are not recommended must not be taken
    over."""
    path = directory / NAME
    if choice.chosen is None:
        path.unlink(missing_ok=True)
        return None
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(limits_text(choice, trials), encoding="utf-8")
    return path


def limits_text(choice: Choice, trials: Trials) -> str:
    """The text of the file, for a choice that recommends something."""
    chosen = choice.chosen
    assert chosen is not None
    found = effects(choice)
    lines = [*_comment(conclusion(choice)), "", "[flow]"]
    for effect in found:
        lines += [*_comment(effect_words(effect, choice, trials)), _limit(effect.key, effect.value)]
    lines += ["", *_evidence(choice, chosen, trials)]
    for effect in found:
        lines += ["", *_evidence_of(effect, choice, trials)]
    return "\n".join(lines) + "\n"


def conclusion(choice: Choice) -> str:
    """The recommendation and what it is worth, or why there is none: one or two sentences."""
    chosen = choice.chosen
    if chosen is None:
        return choice.refusal
    assert chosen.held_out is not None
    score = chosen.held_out.score
    assert score is not None
    places = count(len(choice.places), "load")
    return (
        f"Take {chosen.candidate.name}: beside the defaults {percent(score.mean)}, 95 % interval "
        f"{percent(score.low)} to {percent(score.high)}, on {score.count} held-out seeds in "
        f"{places}; all constraints hold. Chosen for: {choice.objective.title}."
    )


def effect_words(effect: Effect, choice: Choice, trials: Trials) -> str:
    default = trials.default_limits.get(effect.key)
    instead = f" instead of {default}" if default else ""
    low, high = percent(effect.interval.low), percent(effect.interval.high)
    runs = len(runs_behind(effect, choice, trials))
    words = (
        f"{effect.value}{instead}: {percent(effect.interval.mean)} ({low} to {high}, {runs} runs)"
    )
    if effect.other is None:
        words += ", all limits of this file together: what this one does alone was not tried"
    elif effect.other != DEFAULTS:
        words += f", compared with {effect.other.name}"
    if effect.as_good:
        words += f"; not surely worse: {', '.join(effect.as_good)}"
    return f"{words}."


def runs_behind(effect: Effect, choice: Choice, trials: Trials) -> list[str]:
    """The held-out runs of the choice, and those that it is compared with."""
    assert choice.chosen is not None
    other: Candidate = DEFAULTS if effect.other is None else effect.other
    return sorted(
        trials.run_ids[candidate, place, seed]
        for candidate in (choice.chosen.candidate, other)
        for place in choice.places
        for seed in choice.split.held_out
    )


def _evidence(choice: Choice, chosen: Judged, trials: Trials) -> Iterator[str]:
    assert chosen.held_out is not None
    assert chosen.held_out.score is not None
    score = chosen.held_out.score
    named = "\n".join((*trials.versions, *sorted(trials.run_ids.values())))
    digest = blake2b(named.encode(), digest_size=8)
    yield "[evidence]"
    yield _pair("objective", choice.objective.title)
    yield _pair("flowguard_versions", trials.versions)
    yield from _comment("All runs that were compared; the digest is of their versions and names.")
    yield _pair("dataset_runs_count", len(trials.run_ids))
    yield _pair("dataset_digest", digest.hexdigest())
    yield _pair("candidates_count", len(choice.judged) - 1)
    yield _pair("scenarios", [place.name for place in choice.places])
    yield from _comment("Better than the defaults by this share, and its 95 % interval.")
    yield from _improvement(score.mean, score.low, score.high)
    yield _pair("training_seeds", list(choice.split.training))
    yield _pair("held_out_seeds", list(choice.split.held_out))


def _evidence_of(effect: Effect, choice: Choice, trials: Trials) -> Iterator[str]:
    runs = runs_behind(effect, choice, trials)
    default = trials.default_limits.get(effect.key)
    yield f"[evidence.{effect.key}]"
    yield _pair("reason", effect_words(effect, choice, trials))
    if default:
        yield _limit("default", default)
    yield _pair("is_alone", effect.other is not None)
    yield from _improvement(effect.interval.mean, effect.interval.low, effect.interval.high)
    yield _pair("as_good", effect.as_good)
    yield _pair("runs_count", len(runs))
    yield "runs = ["
    yield from (f"  {json.dumps(run, ensure_ascii=False)}," for run in runs)
    yield "]"


def _improvement(mean: float, low: float, high: float) -> Iterator[str]:
    """The improvement in words, from logarithms of ratios."""
    for name, value in (("", mean), ("_low", low), ("_high", high)):
        yield _pair(f"improvement{name}", round(math.expm1(value), _DIGITS))


def _pair(key: str, value: str | float | Sequence[str] | Sequence[int]) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _limit(key: str, value: str) -> str:
    """A limit's value from its text; a number if it looks like one."""
    return _pair(key, value) if math.isinf(in_size(value)[0]) else f"{key} = {value}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH, break_on_hyphens=False)]
