"""Sentences: what a chart shows, in words, made of its numbers."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from spark_analysis.questions.question import Better, Metric, Unit
from spark_analysis.report.findings import Block, Summary
from spark_analysis.report.words import Names, count, margin, number, quantity


def conclusion(block: Block, names: Names) -> str:
    """Who is best and who is last, or that nobody can tell; with how many runs."""
    ranked = block.ranked()
    metric = block.first
    best, last = ranked[0], ranked[-1]
    runs = _runs(ranked)
    if len(ranked) == 1:
        return f"{names.name(best.set)}: {_value(best, metric)} {metric.words}, {runs}."
    if _is_equal(ranked):
        same = _value(best, metric)
        return f"The same for all {len(ranked)}: {same} {metric.words}, {runs} each."
    if not _is_clear(best, last):
        words = f"{_value(best, metric)} ({names.name(best.set)})"
        words += f" and {_value(last, metric)} ({names.name(last.set)})"
        return f"No clear difference: between {words} {metric.words}, {runs} each."
    first = f"{_leaders(ranked, names)}: {_value(best, metric)} {metric.words}"
    second = f"{names.name(last.set)} is last: {_value(last, metric)}{_times(best, last, metric)}"
    return f"{first}; {second}; {runs} each."


def _leaders(ranked: Sequence[Summary], names: Names) -> str:
    """Who is best, with those whose interval touches that of the best."""
    best = names.name(ranked[0].set)
    lead = [one for one in ranked if not _is_clear(ranked[0], one)]
    if len(lead) == 1:
        return f"{best} is best of {len(ranked)}"
    if len(lead) == 2:
        return f"{best} and {names.name(lead[1].set)} are ahead"
    return f"{best} and {len(lead) - 1} more of {len(ranked)} are ahead"


def _value(one: Summary, metric: Metric) -> str:
    if one.mean is None:
        return f"{metric.never}, in {one.missing} of {count(one.runs, 'run')}"
    is_alone = one.high is None or one.high - one.mean < 1e-12
    value = quantity(one.mean, metric.unit) if is_alone else _margin(one, metric.unit)
    if one.missing:
        return f"{value} ({metric.never} in {one.missing} of {one.runs})"
    return value


def _margin(one: Summary, unit: Unit) -> str:
    assert one.mean is not None
    assert one.high is not None
    return margin(one.mean, one.high, unit)


def _runs(ranked: Sequence[Summary]) -> str:
    fewest, most = min(one.runs for one in ranked), max(one.runs for one in ranked)
    return count(most, "run") if fewest == most else f"{fewest} to {most} runs"


def _is_equal(ranked: Sequence[Summary]) -> bool:
    means = {one.mean for one in ranked}
    return len(means) == 1 and not any(one.missing for one in ranked)


def _is_clear(best: Summary, last: Summary) -> bool:
    """Whether the two intervals are apart; a single run has none and is taken as it is."""
    if best.missing / best.runs != last.missing / last.runs:
        return True
    if best.mean is None or last.mean is None:
        return False
    lower, upper = sorted((best, last), key=lambda one: one.mean or 0.0)
    assert lower.mean is not None
    assert upper.mean is not None
    return (upper.mean if upper.low is None else upper.low) > (
        lower.mean if lower.high is None else lower.high
    )


def _times(best: Summary, last: Summary, metric: Metric) -> str:
    """` (2.3 times as much)`, where that says something."""
    if best.mean is None or last.mean is None or metric.unit in (Unit.INDEX, Unit.SHARE):
        return ""
    if metric.better is Better.NEITHER or min(best.mean, last.mean) <= 0:
        return ""
    ratio = last.mean / best.mean
    if metric.better is Better.MORE:
        return f" ({number(100 * ratio, 2)} % of it)"
    return f" ({number(ratio, 2)} times as much)" if ratio >= 1.1 else ""


def region_conclusion(places: Sequence[dict[str, Any]]) -> str:
    """From which load on each policy stays collapsed; `places` are rows of one scenario."""
    by_policy = defaultdict(list)
    for place in places:
        by_policy[place["policy"]].append(place)
    sentences = []
    for policy, of_policy in sorted(by_policy.items()):
        runs = sum(place["runs_count"] for place in of_policy)
        lost = [place for place in of_policy if place["recovered_count"] < place["runs_count"]]
        if not lost:
            sentences.append(f"{policy} came back from every disturbance ({count(runs, 'run')}).")
            continue
        load = min(place["load_ratio"] for place in lost)
        shortest = min(place["trigger_s"] for place in lost if place["load_ratio"] == load)
        failed = sum(place["runs_count"] - place["recovered_count"] for place in lost)
        sentences.append(
            f"{policy} stays collapsed from load {quantity(load, Unit.SHARE)} on, after a "
            f"disturbance of {quantity(shortest, Unit.SECONDS)} ({failed} of {runs} runs)."
        )
    return " ".join(sentences)
