"""limits.toml: the limits for `flowguard serve --limits`, with the reason for each.

Table `flow` has the values. Table `evidence` has their objective and the runs behind them, and a
table per limit. A comment over each value explains the same to a person.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from textwrap import wrap
from typing import Final

from spark_analysis.intervals import Interval
from spark_analysis.report.words import count
from spark_analysis.tuner.choosing import Choice
from spark_analysis.tuner.scoring import Judged, difference, percent, range_words
from spark_analysis.tuner.trials import DEFAULTS, Candidate, Trials

NAME: Final = "limits.toml"
_WIDTH: Final = 96
_DIGITS: Final = 5


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one chosen limit, on held-out seeds; logarithms of ratios."""

    key: str
    value: str
    interval: Interval
    """The improvement over the choice without it, or that of all limits together if that was not
    tried."""
    other: Candidate | None
    """The candidate without this limit, with which it is compared, or None if that was not
    tried."""
    as_good: tuple[str, ...]
    """Other values of it, all else the same, that are not surely worse, sorted."""


def effects(choice: Choice) -> list[Effect]:
    """One per limit that is recommended; none if nothing is."""
    chosen = choice.chosen
    if chosen is None:
        return []
    by_candidate = {one.candidate: one for one in choice.judged}
    assert chosen.held_out is not None
    assert chosen.held_out.score is not None
    found = []
    for key, value in chosen.candidate.limits:
        without = chosen.candidate.without(key)
        alone = _lead(chosen, by_candidate.get(without))
        interval = chosen.held_out.score if alone is None else alone
        other = None if alone is None else without
        found.append(Effect(key, value, interval, other, _as_good(chosen, key, choice)))
    return found


def _lead(chosen: Judged, other: Judged | None) -> Interval | None:
    """The advantage of the choice on held-out seeds, or None if the other one was not judged."""
    if chosen.held_out is None or other is None or other.held_out is None:
        return None
    return difference(chosen.held_out, other.held_out)


def _as_good(chosen: Judged, key: str, choice: Choice) -> tuple[str, ...]:
    """Other values of the limit; not the default, which would leave it out."""
    without = chosen.candidate.without(key)
    found = []
    for one in choice.judged:
        values = dict(one.candidate.limits)
        if one is chosen or key not in values or one.candidate.without(key) != without:
            continue
        if one.problem or one.held_out is None or one.held_out.breaches:
            continue
        lead = _lead(chosen, one)
        if lead is not None and lead.low <= 0:
            found.append(values[key])
    return tuple(sorted(found, key=in_size))


def in_size(value: str) -> tuple[float, str]:
    """A sort key: numbers by their size, then words."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


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
    found = effects(choice)
    lines = [*_comment(conclusion(choice)), "", "[flow]"]
    for effect in found:
        lines += [*_comment(effect_words(effect, choice, trials)), _limit(effect.key, effect.value)]
    lines += ["", *_evidence(choice, trials)]
    for effect in found:
        lines += ["", *_evidence_of(effect, choice, trials)]
    return "\n".join(lines) + "\n"


def conclusion(choice: Choice) -> str:
    """The recommendation and what it is worth, or why there is none: one or two sentences."""
    chosen = choice.chosen
    if chosen is None:
        return choice.refusal
    score = _score(choice)
    places = count(len(choice.places), "load")
    return (
        f"Take {chosen.candidate.name}: beside the defaults {percent(score.mean)}, 95 % interval "
        f"{percent(score.low)} to {percent(score.high)}, on {score.count} held-out seeds in "
        f"{places}; all constraints hold. Chosen for: {choice.objective.title}."
    )


def _score(choice: Choice) -> Interval:
    """The score of the choice on the held-out seeds."""
    assert choice.chosen is not None
    assert choice.chosen.held_out is not None
    assert choice.chosen.held_out.score is not None
    return choice.chosen.held_out.score


def effect_words(effect: Effect, choice: Choice, trials: Trials) -> str:
    default = trials.default_limits.get(effect.key)
    instead = f" instead of {default}" if default else ""
    runs = len(runs_behind(effect, choice, trials))
    words = f"{effect.value}{instead}: {range_words(effect.interval)[:-1]}, {runs} runs)"
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


def _evidence(choice: Choice, trials: Trials) -> Iterator[str]:
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
    yield from _improvement(_score(choice))
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
    yield from _improvement(effect.interval)
    yield _pair("as_good", effect.as_good)
    yield _pair("runs_count", len(runs))
    yield "runs = ["
    yield from (f"  {json.dumps(run, ensure_ascii=False)}," for run in runs)
    yield "]"


def _improvement(found: Interval) -> Iterator[str]:
    """The improvement in words, from logarithms of ratios."""
    for name, value in (("", found.mean), ("_low", found.low), ("_high", found.high)):
        yield _pair(f"improvement{name}", round(math.expm1(value), _DIGITS))


def _pair(key: str, value: str | float | Sequence[str] | Sequence[int]) -> str:
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _limit(key: str, value: str) -> str:
    """A limit's value from its text; a number if it looks like one."""
    return _pair(key, value) if math.isinf(in_size(value)[0]) else f"{key} = {value}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH, break_on_hyphens=False)]
