"""The condition of the node, in one sentence: `busy: store commits take 80 ms, window 14`."""

from enum import StrEnum
from typing import Final

from flowguard.lines import count
from flowguard.ops.status import PressureStatus, Status

NO_ROOM: Final = "the store is full: durable messages and new durable sessions are rejected"
LIMITS_FROM: Final = 0.8
"""Pressure from which windows do not grow; its cause is the signal that limits the node."""
CAUSES: Final = {
    "queue": "packets wait {}",
    "loop": "the event loop is {} late",
    "store": "store commits take {}",
    "replication": "replication is {} behind",
    "memory": "memory is {} full",
}


class Condition(StrEnum):
    CALM = "calm"
    """Every client has the whole window, and no CONNECT waits."""
    BUSY = "busy"
    """Windows are reduced, or CONNECTs wait."""
    OVERLOADED = "overloaded"
    """Clients take turns, nothing is admitted, or new sockets are rejected."""
    READ_ONLY = "read-only"
    DRAINING = "draining"


def condition_of(status: Status) -> tuple[Condition, str]:
    """Return the condition, and the sentence that begins with it."""
    condition = _condition(status)
    parts = [*_reasons(status, condition), _window(status)]
    if condition is Condition.CALM:
        parts.insert(0, count(status["clients"]["connected"], "client"))
    return condition, f"{condition}: {', '.join(parts)}"


def _condition(status: Status) -> Condition:
    window, gate = status["window"], status["gate"]
    if status["draining"]:
        return Condition.DRAINING
    if status["store"]["read_only"]:
        return Condition.READ_ONLY
    if window["closed"] or window["granted"] < 1 or gate["rung"] != "buffer":
        return Condition.OVERLOADED
    if window["limit"] < window["limit_max"] or gate["buffered"]["used"]:
        return Condition.BUSY
    return Condition.BUSY if status["pressure"]["value"] > 1 else Condition.CALM


def _reasons(status: Status, condition: Condition) -> list[str]:
    found = []
    if condition is Condition.DRAINING:
        return [count(status["clients"]["connected"], "client") + " still connected"]
    if condition is Condition.READ_ONLY:
        found.append(NO_ROOM)
    elif status["window"]["closed"]:
        found.append("the journal is full, no packets are processed")
    found += cause_of(status["pressure"])
    waiting, rung = status["gate"]["buffered"]["used"], status["gate"]["rung"]
    if waiting:
        found.append(count(waiting, "CONNECT") + " waiting")
    if rung != "buffer":
        found.append("new sockets are closed")
    if condition is Condition.BUSY and not found:
        found.append("the window is growing again")
    return found


def _window(status: Status) -> str:
    window = status["window"]
    return "clients take turns" if window["granted"] < 1 else f"window {window['limit']:,}"


def cause_of(pressure: PressureStatus) -> list[str]:
    """Return the signal that limits the node, with its value, or []."""
    cause = pressure["cause"]
    if cause is None or pressure["value"] < LIMITS_FROM:
        return []
    value = pressure["observed"][cause]
    text = f"{value * 100:.0f} %" if cause == "memory" else duration(value)
    return [CAUSES[cause].format(text)]


def duration(value_s: float) -> str:
    """Return seconds for people: `80 ms`, `1.4 s`."""
    return f"{value_s * 1e3:.0f} ms" if value_s < 1 else f"{value_s:.1f} s"
