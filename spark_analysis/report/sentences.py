"""Sentences: the content of a chart in words, made of its numbers."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from spark_analysis.questions.question import Better, Metric, Unit
from spark_analysis.report.findings import Block, MetricSummary
from spark_analysis.report.words import Names, count, margin, number, quantity

ALONE_SHARE: Final = 0.05
"""Noise that is assumed for a single run, as a share of its value, up and down."""
SAME_SHARE: Final = 0.005
"""A difference below this share is ignored, however alike the runs of a set are."""
LOADS_SHOWN: Final = 4
"""Loads that get a sentence; the table has all of them."""


def conclusion(block: Block, names: Names) -> str:
    """The best and the worst set, or that they cannot be told apart; with the number of runs.

    Only sets that had the same load are compared; others are listed.
    """
    groups = block.rivals()
    if len(groups) == 1:
        return _comparison(groups[0], block.first, names)
    compared = [group for group in groups if len(group) > 1]
    sentences = [_comparison(group, block.first, names) for group in compared[:LOADS_SHOWN]]
    alone = [group[0] for group in groups if len(group) == 1]
    if alone:
        sentences.append(_not_compared(alone, block.first, names))
    hidden = max(0, len(compared) - LOADS_SHOWN)
    if hidden:
        sentences.append(f"{count(hidden, 'more load')}: in the table.")
    return " ".join(sentences)


def _not_compared(alone: Sequence[MetricSummary], metric: Metric, names: Names) -> str:
    """A sentence on sets whose load no other set had."""
    shown = [f"{_value(one, metric)} ({names.name(one.set)})" for one in alone[:LOADS_SHOWN]]
    more = len(alone) - len(shown)
    values = "; ".join(shown) + (f"; {more} more in the table" if more else "")
    return f"Not compared, because each had a load of its own: {values} {metric.words}."


def _comparison(ranked: Sequence[MetricSummary], metric: Metric, names: Names) -> str:
    """A sentence on sets that can be compared, the best one first."""
    best, last = ranked[0], ranked[-1]
    runs = _runs(ranked)
    if len(ranked) == 1:
        return f"{names.name(best.set)}: {_value(best, metric)} {metric.words}, {runs}."
    if _is_equal(ranked):
        same = _value(best, metric)
        return f"All {len(ranked)} are the same: {same} {metric.words}, {runs} each."
    if not _is_clear(best, last):
        words = f"{_value(best, metric)} ({names.name(best.set)})"
        words += f" and {_value(last, metric)} ({names.name(last.set)})"
        return f"Equal within noise: between {words} {metric.words}, {runs} each."
    lead = [one for one in ranked if not _is_clear(best, one)]
    behind = [one for one in ranked[len(lead) :] if not _is_clear(one, last)]
    of = f" of {len(ranked)}"
    first = _named(lead, f"is best{of}", f"more{of} are ahead", names)
    second = _named(behind[::-1], "is last", "more are behind", names)
    of_last = f"{_value(last, metric)}{_times(best, last, metric)}"
    return f"{first}: {_value(best, metric)} {metric.words}; {second}: {of_last}; {runs} each."


def _named(sets: Sequence[MetricSummary], alone: str, more: str, names: Names) -> str:
    """The first set, with those that cannot be told from it, and what is said of them."""
    first, *others = [names.name(one.set) for one in sets]
    if not others:
        return f"{first} {alone}"
    if len(others) == 1:
        return f"{first} and {others[0]} are {more.split()[-1]}"
    return f"{first} and {len(others)} {more}"


def _value(one: MetricSummary, metric: Metric) -> str:
    if one.mean is None:
        return f"{metric.never}, in {one.missing} of {count(one.runs, 'run')}"
    value = margin(one.mean, one.high, metric.unit)
    return f"{value} ({metric.never} in {one.missing} of {one.runs})" if one.missing else value


def _runs(ranked: Sequence[MetricSummary]) -> str:
    fewest, most = min(one.runs for one in ranked), max(one.runs for one in ranked)
    return count(most, "run") if fewest == most else f"{fewest} to {most} runs"


def _is_equal(ranked: Sequence[MetricSummary]) -> bool:
    means = {one.mean for one in ranked}
    return len(means) == 1 and not any(one.missing for one in ranked)


def _is_clear(best: MetricSummary, last: MetricSummary) -> bool:
    """Whether the two are apart by more than noise."""
    if best.missing / best.runs != last.missing / last.runs:
        return True
    if best.mean is None or last.mean is None:
        return False
    lower, upper = sorted((_interval(best), _interval(last)))
    return upper[0] > lower[1]


def _interval(one: MetricSummary) -> tuple[float, float]:
    """The range of the mean: from its runs, or by the assumed noise of a single one."""
    assert one.mean is not None
    is_alone = one.low is None or one.high is None
    half = abs(one.mean) * (ALONE_SHARE if is_alone else SAME_SHARE)
    low = one.mean if one.low is None else one.low
    high = one.mean if one.high is None else one.high
    return min(low, one.mean - half), max(high, one.mean + half)


def _times(best: MetricSummary, last: MetricSummary, metric: Metric) -> str:
    """` (2.3 times as much)`, if that ratio is informative."""
    if best.mean is None or last.mean is None or metric.unit in (Unit.INDEX, Unit.SHARE):
        return ""
    if metric.better is Better.NEITHER or min(best.mean, last.mean) <= 0:
        return ""
    ratio = last.mean / best.mean
    if metric.better is Better.MORE:
        return f" ({number(100 * ratio, 2)} % of it)"
    return f" ({number(ratio, 2)} times as much)" if ratio >= 1.1 else ""


def region_conclusion(places: Sequence[dict[str, Any]]) -> str:
    """The load from which on each policy stays collapsed; `places` are rows of one scenario."""
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
