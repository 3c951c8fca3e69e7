"""Events: stops, crowds, overload and rejections of a day, each with its time."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from spark_analysis.day.course import CONNECT, MESSAGE
from spark_analysis.questions.question import Unit
from spark_analysis.report.words import quantity

Row = dict[str, Any]
CROWD_RATIO: Final = 5.0
"""CONNECT rate by its median over the day, from which on it is a crowd."""
CROWD_PER_S: Final = 5.0
"""Rate below which nothing is a crowd, CONNECTs per second."""
CROWD_COUNT: Final = 50
"""Fewer CONNECTs are no crowd."""
OVERLOAD_S: Final = 5.0
"""Shorter overload is no event, seconds."""
PAUSE_S: Final = 15.0
"""Quiet time after which the next episode is another one, seconds."""
BEFORE_S: Final = 60.0
"""Time before an overload whose windows it is compared with, seconds."""
VALUE_MAX: Final = 40
"""Maximum length of a value in an event; of longer ones only the setting is named, characters."""
STOPPED: Final = "stopped"
"""How a recording ends whose broker ends cleanly."""
GAP_S: Final = 2.0
"""Time without a record that counts as a stop, seconds."""
_LEAST: Final = ("window", "shadow_window", "connect_limit")
"""Columns of which the smallest value is the worst; counts are added, except this one:"""
_MOST: Final = "shadow_paused_count"
CAUSES: Final = {
    "queue": "packets waited for their turn",
    "loop": "the event loop had too much work",
    "store": "the store was slow",
    "replication": "other nodes did not answer",
    "memory": "memory was short",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, in words; `detail` has its numbers."""

    kind: str
    from_s: float
    until_s: float
    words: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A recorded run of a broker: its time on the clock, and what it was."""

    broker: str
    from_s: float
    until_s: float
    ended_by: str
    version: str
    settings: Mapping[str, str]


def fleet(rows: Sequence[Row]) -> list[Row]:
    """All brokers together, one row per step: sums of counts, the worst of everything else."""
    by_step: dict[int, list[Row]] = {}
    for row in rows:
        by_step.setdefault(row["at_s"], []).append(row)
    return [_together(by_step[at_s]) for at_s in sorted(by_step)]


def _together(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    together = {}
    for name in rows[0]:
        known = [row[name] for row in rows if row[name] is not None]
        is_sum = name == "busy_s" or (name.endswith("_count") and name != _MOST)
        worst = min if name in _LEAST else max
        together[name] = sum(known) if is_sum else worst(known, default=None)
    together["cause"] = max(rows, key=lambda row: row["pressure_ratio"])["cause"]
    return together


def events(
    course: Sequence[Row], reasons: Sequence[Row], lives: Sequence[Lifetime], step_s: int
) -> list[Event]:
    """Everything that happened, in order of time. `course` as `fleet`, `reasons` of all brokers."""
    crowds = list(_crowds(course, reasons, step_s))

    def is_of_crowd(event: Event) -> bool:
        return event.kind == CONNECT and any(
            crowd.from_s <= event.from_s and event.until_s <= crowd.until_s for crowd in crowds
        )

    losses = [event for event in _losses(reasons, step_s) if not is_of_crowd(event)]
    found = [*_stops(lives), *crowds, *_overloads(course, step_s), *losses]
    return sorted(found, key=lambda event: (event.from_s, event.kind))


def gaps(lives: Sequence[Lifetime]) -> list[tuple[Lifetime, Lifetime]]:
    """Return all pairs of recorded runs of a broker that follow each other."""
    by_broker: dict[str, list[Lifetime]] = {}
    for life in sorted(lives, key=lambda life: life.from_s):
        by_broker.setdefault(life.broker, []).append(life)
    return [pair for own in by_broker.values() for pair in pairwise(own)]


def _stops(lives: Sequence[Lifetime]) -> Iterator[Event]:
    """Stops and restarts of each broker, with what the new process has else."""
    are_many = len({life.broker for life in lives}) > 1
    for before, after in gaps(lives):
        changes = _changes(before, after)
        gap_s = after.from_s - before.until_s
        if gap_s < GAP_S and not changes and before.ended_by == "duration":
            continue
        name = f" {after.broker}" if are_many else ""
        away = quantity(max(gap_s, 0.0), Unit.SECONDS)
        words = {
            STOPPED: f"Broker{name} stopped, started again after {away}",
            "duration": f"Broker{name} not recorded for {away}",
        }.get(before.ended_by, f"Broker{name} killed; nothing is recorded for {away}")
        yield Event("restart", before.until_s, after.from_s, words, "; ".join(changes))


def _changes(before: Lifetime, after: Lifetime) -> list[str]:
    found = []
    if before.version != after.version:
        found.append(f"version {before.version} became {after.version}")
    for key in sorted({*before.settings, *after.settings}):
        old, new = before.settings.get(key, "default"), after.settings.get(key, "default")
        if old != new:
            is_short = max(len(old), len(new)) <= VALUE_MAX
            found.append(f"{key}: {old} became {new}" if is_short else f"{key} changed")
    return found


def _crowds(course: Sequence[Row], reasons: Sequence[Row], step_s: int) -> Iterator[Event]:
    """Times in which far more clients connected than usual."""
    rates = [(row["attempts_count"] or 0) / step_s for row in course]
    usual = median(rates) if rates else 0.0
    least = max(CROWD_RATIO * usual, CROWD_PER_S)
    crowded = [row for row, rate in zip(course, rates, strict=True) if rate >= least]
    for episode in _episodes(crowded, step_s):
        from_s, until_s = episode[0]["at_s"], episode[-1]["at_s"] + step_s
        came = sum(row["attempts_count"] for row in episode)
        if came < CROWD_COUNT:
            continue
        most = quantity(max(row["attempts_count"] for row in episode) / step_s, Unit.PER_SECOND)
        rejected = reason_counts(reasons, CONNECT, from_s, until_s)
        detail = f"at most {most}, usually {quantity(usual, Unit.PER_SECOND)}"
        detail += f"; {_counts(rejected, ' rejected')}" if rejected else "; none rejected"
        yield Event("crowd", from_s, until_s, f"Crowd of {came:,} CONNECTs", detail)


def _overloads(course: Sequence[Row], step_s: int) -> Iterator[Event]:
    """Overload, by its cause; a shorter one than OVERLOAD_S is none."""
    for causes in (("store",), ("replication",), ("memory",), ("queue", "loop")):
        loaded = [row for row in course if row["cause"] in causes and row["pressure_ratio"] > 1]
        for episode in _episodes(loaded, step_s):
            loaded_s = step_s * sum(row["overload_ratio"] for row in episode)
            if loaded_s >= OVERLOAD_S:
                since_s = episode[0]["at_s"] - BEFORE_S
                before = [row for row in course if since_s <= row["at_s"] <= episode[-1]["at_s"]]
                yield _overload(episode, loaded_s, step_s, cut_window(before))


def cut_window(rows: Sequence[Row]) -> float | None:
    """Return the smallest window of each client in these steps, or None if it was never cut."""
    least = min((row["window"] for row in rows), default=0.0)
    return least if any(row["window"] > least for row in rows) else None


def _overload(episode: Sequence[Row], loaded_s: float, step_s: int, window: float | None) -> Event:
    worst = max(episode, key=lambda row: row["pressure_ratio"])
    detail = f"pressure up to {worst['pressure_ratio']:.3g}, above 1 for "
    detail += f"{quantity(loaded_s, Unit.SECONDS)} of it"
    if window is not None:
        detail += f"; window of each client down to {window:.3g} packets"
    if worst["cause"] == "store":
        waits = quantity(max(row["commit_s"] for row in episode), Unit.SECONDS)
        detail += f"; a durable write took up to {waits}"
    words = f"Overload: {CAUSES[worst['cause']]}"
    kind = "store" if worst["cause"] == "store" else "overload"
    return Event(kind, episode[0]["at_s"], episode[-1]["at_s"] + step_s, words, detail)


def _losses(reasons: Sequence[Row], step_s: int) -> Iterator[Event]:
    """Rejected CONNECTs and dropped messages."""
    for kind, words in ((CONNECT, "CONNECTs rejected"), (MESSAGE, "Messages dropped")):
        by_step = Counter[int]()
        for row in reasons:
            if row["kind"] == kind:
                by_step[row["at_s"]] += row["count"]
        steps = [{"at_s": at_s} for at_s in sorted(by_step)]
        for episode in _episodes(steps, step_s):
            from_s, until_s = episode[0]["at_s"], episode[-1]["at_s"] + step_s
            detail = _counts(reason_counts(reasons, kind, from_s, until_s))
            yield Event(kind, from_s, until_s, words, detail)


def reason_counts(reasons: Sequence[Row], kind: str, from_s: float, until_s: float) -> Counter[str]:
    """How many CONNECTs were rejected, or messages dropped, in a time; by reason."""
    found = Counter[str]()
    for row in reasons:
        if row["kind"] == kind and from_s <= row["at_s"] < until_s:
            found[row["reason"]] += row["count"]
    return found


def _counts(by_reason: Counter[str], words: str = "") -> str:
    parts = [f"{amount:,} {reason}" for reason, amount in by_reason.most_common(3)]
    return f"{by_reason.total():,}{words} ({', '.join(parts)})"


def _episodes(rows: Sequence[Row], step_s: int) -> Iterator[list[Row]]:
    """The rows in groups: between two groups there is a pause."""
    episode: list[Row] = []
    for row in rows:
        if episode and row["at_s"] - episode[-1]["at_s"] > max(PAUSE_S, step_s) + step_s:
            yield episode
            episode = []
        episode.append(row)
    if episode:
        yield episode
