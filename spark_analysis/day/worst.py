"""Worst: the five minutes in which clients had most trouble, with causes and advice."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from spark_analysis.day.course import BEYOND_S, CONNECT, MESSAGE
from spark_analysis.day.events import (
    CAUSES,
    GAP_S,
    STOPPED,
    Event,
    Lifetime,
    Row,
    cut_window,
    gaps,
    reason_counts,
)
from spark_analysis.questions.question import Unit
from spark_analysis.report.words import clock, count, quantity

WORST_S: Final = 300
HOW: Final = (
    "Trouble is the time in which CONNECTs were rejected, messages were dropped, pressure was "
    "above 1, or a broker was down. No other five minutes have more of it."
)
BUSY_SHARE: Final = 0.8
"""Share of its time that an event loop works, from which on its core is the limit."""
ADVICE: Final = {
    "gate_buffer_full": "flow.connect_buffer_max (CONNECTs that wait)",
    "gate_buffer_bytes": "flow.connect_buffer_bytes_max (size of the connect queue)",
    "gate_memory": "flow.memory_max_bytes (memory)",
    "gate_limit": "flow.connects_in_process_max (CONNECTs in process)",
    "connections_max": "node.connections_max (clients)",
    "sessions_max": "node.sessions_max (stored sessions)",
    "queue_messages": "session.queue_messages_max (messages that wait for a client)",
    "queue_bytes": "session.queue_bytes_max (bytes that wait for a client)",
    "node_queue_bytes": "flow.memory_max_bytes (memory)",
    "outbox_bytes": "session.outbox_bytes_max (unsent bytes of a client)",
}
"""The setting that each reason for rejecting or dropping depends on."""


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst five minutes."""

    from_s: int
    until_s: int
    trouble_s: float
    rows: list[Row]
    """Steps of all brokers together, as `events.fleet`."""
    rejected: Counter[str]
    dropped: Counter[str]
    down_s: float


def worst(
    course: Sequence[Row], reasons: Sequence[Row], lives: Sequence[Lifetime], step_s: int
) -> Worst | None:
    """The worst five minutes of a course, or None if there was no trouble."""
    lost = Counter[int]()
    for row in reasons:
        # Messages that no limit has dropped were dropped as asked.
        if row["kind"] == CONNECT or row["reason"] in ADVICE:
            lost[row["at_s"]] += row["count"]
    by_step = {row["at_s"]: row for row in course}
    first, last = min(by_step, default=0), max(by_step, default=0)
    down = downtimes(lives)
    length_s = max(WORST_S, step_s)

    def trouble(at_s: int) -> tuple[float, int, float]:
        row = by_step.get(at_s)
        down_s = sum(_overlap(gap, (at_s, at_s + step_s)) for gap in down)
        seconds = (
            float(step_s)
            if lost[at_s]
            else (0.0 if row is None else row["overload_ratio"] * step_s)
        )
        return max(seconds, down_s), lost[at_s], 0.0 if row is None else row["pressure_ratio"]

    each = [trouble(at_s) for at_s in range(first, last + step_s, step_s)]
    steps = length_s // step_s
    sums = [
        tuple(map(sum, zip(*each[start : start + steps], strict=True)))
        for start in range(max(len(each) - steps + 1, 1))
    ]
    if not sums or max(sums)[0] == 0:
        return None
    best = max(sums)
    # In the middle of equal ones, the trouble is not at the edge.
    equal = [number for number, each in enumerate(sums) if each == best]
    from_s = first + step_s * equal[len(equal) // 2]
    until_s = from_s + length_s
    return Worst(
        from_s,
        until_s,
        best[0],
        [row for row in course if from_s <= row["at_s"] < until_s],
        reason_counts(reasons, CONNECT, from_s, until_s),
        reason_counts(reasons, MESSAGE, from_s, until_s),
        sum(_overlap(gap, (from_s, until_s)) for gap in down),
    )


def downtimes(lives: Sequence[Lifetime]) -> list[tuple[float, float]]:
    """Times in which a broker was down. The last minute of a killed one may not be recorded."""
    return [
        (one.until_s, two.from_s)
        for one, two in gaps(lives)
        if two.from_s - one.until_s > GAP_S and one.ended_by == STOPPED
    ]


def _overlap(gap: tuple[float, float], step: tuple[float, float]) -> float:
    return max(0.0, min(gap[1], step[1]) - max(gap[0], step[0]))


def sufferers(found: Worst, course: Sequence[Row]) -> list[str]:
    """Return the groups of clients that suffered, in a sentence each."""
    said = []
    came = sum(row["attempts_count"] or 0 for row in found.rows)
    if found.rejected:
        total = found.rejected.total()
        share = f" ({quantity(min(total / came, 1.0), Unit.SHARE)})" if came else ""
        said.append(
            f"Clients that connected: {total:,} of {came:,} CONNECTs were rejected{share}: "
            f"{_listed(found.rejected)}."
        )
    for kind, words in (("connect", "CONNACK"), ("acknowledgement", "PUBACK or PUBREC")):
        column = f"{kind}_p99_s"
        here = [row[column] for row in found.rows if row[column] is not None]
        usual = [row[column] for row in course if row[column] is not None]
        if here and usual and max(here) > 2 * median(usual):
            longest = quantity(max(here), Unit.SECONDS)
            longest += " (longer waits are not measured)" if max(here) >= BEYOND_S else ""
            clients = "Clients that connected" if kind == "connect" else "Publishers"
            said.append(
                f"{clients}: at the worst time one in 100 waited at least {longest} for {words}, "
                f"usually {quantity(median(usual), Unit.SECONDS)}."
            )
    if found.dropped:
        said.append(
            f"Subscribers and publishers: {found.dropped.total():,} messages were dropped: "
            f"{_listed(found.dropped)}."
        )
    connected = [row["connected_count"] or 0 for row in found.rows]
    if found.down_s:
        said.append(
            f"All clients of the broker: it was down for {quantity(found.down_s, Unit.SECONDS)}."
        )
    elif connected and min(connected) < 0.8 * max(connected):
        said.append(f"Connected clients: between {min(connected):,} and {max(connected):,}.")
    return said or [
        "No client that the recording shows: the broker held clients back, and rejected none."
    ]


def why(found: Worst) -> list[str]:
    """The causes, with their share of the time in overload."""
    said = []
    loaded = [row for row in found.rows if row["pressure_ratio"] > 1]
    causes = Counter[str](row["cause"] or "unknown" for row in loaded)
    for cause, steps in causes.most_common(2):
        of_cause = [row for row in loaded if row["cause"] == cause]
        most = max(row["pressure_ratio"] for row in of_cause)
        said.append(
            f"{CAUSES.get(cause, cause).capitalize()}: the worst signal ({cause}) in "
            f"{quantity(steps / len(loaded), Unit.SHARE)} of the time in overload, up to "
            f"{most:.3g} times its objective."
        )
    if loaded:
        window = cut_window(found.rows)
        said.append(
            "Windows of clients were not cut."
            if window is None
            else f"The window of each client was cut to {window:.3g} packets."
        )
    if found.rejected and not loaded:
        said.append(
            "Pressure was never above 1: CONNECTs were rejected by a limit, not by overload."
        )
    if found.down_s:
        said.append("A broker was stopped, or not there; see the events above.")
    return said


def advice(found: Worst, events: Sequence[Event], step_s: int) -> list[str]:
    """Return what would have helped, as far as the recording shows, and what to do."""
    said = []
    causes = Counter[str](row["cause"] or "" for row in found.rows if row["pressure_ratio"] > 1)
    main = causes.most_common(1)[0][0] if causes else ""
    busy = max((row["busy_s"] or 0.0) / step_s for row in found.rows) if found.rows else 0.0
    if main == "store":
        said.append(
            "No limit helps against a slow store: acknowledgements wait until the store has the "
            f"data. Look at the store's log, machine and disk from {clock(found.from_s)} to "
            f"{clock(found.until_s)}."
        )
    if main in ("loop", "queue"):
        said.append(
            f"The event loop worked {quantity(busy, Unit.SHARE)} of its busiest step. "
            + (
                "The core was the limit: add workers (serve --workers) or nodes."
                if busy >= BUSY_SHARE
                else "The loop had time left: look for other programs on its core."
            )
        )
    if main == "memory":
        said.append("Memory was the limit: raise flow.memory_max_bytes, or add nodes.")
    for reason, amount in (found.rejected + found.dropped).most_common(3):
        setting = ADVICE.get(reason)
        if setting and (main == "" or busy < BUSY_SHARE):
            said.append(
                f"{amount:,} times the limit {setting} was reached. Raise it, and record again."
            )
        elif reason in ("gate_deadline", "gate_wait"):
            said.append(
                f"{amount:,} CONNECTs would have waited longer than their clients do "
                "(flow.connect_patience_s): more of them in process need more workers or nodes."
            )
    for reason in ("not_authorized", "bad_user_name_or_password", "banned"):
        if amount := found.rejected[reason]:
            said.append(f"{amount:,} CONNECTs had wrong credentials: look at what was deployed.")
    if any(
        event.kind == "restart"
        and event.from_s < found.until_s
        and event.until_s > found.from_s - 60
        for event in events
    ):
        said.append(
            "A restart brings all clients back at once: let a node end slowly (node.drain_s), and "
            "let clients wait a random time before they connect."
        )
    watched = [row for row in found.rows if row["shadow_window"] is not None]
    said.append(
        _of_shadow(watched)
        if watched
        else "Try limits before you set them: flowguard serve --shadow limits.toml evaluates them "
        "on the real load without effect."
    )
    return said


def _of_shadow(rows: Sequence[Row]) -> str:
    """Return a sentence on the limits that only watched."""
    stricter = [row for row in rows if row["shadow_share"]]
    if not stricter:
        return "The limits of --shadow would never have had a smaller window than those in force."
    share = quantity(sum(row["shadow_share"] for row in stricter) / len(rows), Unit.SHARE)
    least, enforced = (min(row[name] for row in stricter) for name in ("shadow_window", "window"))
    paused = max(row["shadow_paused_count"] for row in stricter)
    return (
        f"The limits of --shadow would have had a smaller window in {share} of the time, of all "
        f"brokers the worst: down to {least:.3g} packets, in force were {enforced:.3g}. They would "
        f"have paused {count(paused, 'more client')} at once."
    )


def _listed(by_reason: Counter[str]) -> str:
    return ", ".join(f"{amount:,} {reason}" for reason, amount in by_reason.most_common(4))
