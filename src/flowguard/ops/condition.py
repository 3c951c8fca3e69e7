"""The condition of the node, in one sentence: `busy: store commits take 80 ms, window 14`.

`not_ready` returns the reason why the node takes no clients now, for `/ready`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from flowguard.lines import count
from flowguard.node.connect.accept_state import Rest
from flowguard.node.node import Node
from flowguard.ops.status import PressureStatus, Status, StoreStatus

NO_ROOM: Final = "the store is full: durable messages and new durable sessions are rejected"
NO_DESCRIPTORS: Final = "all descriptors are in use"
LIMITS_FROM: Final = 0.8
"""Pressure from which windows do not grow; its cause is the signal that limits the node."""
OUTAGES: Final = {
    "redis": "Redis has accepted no writes for {}",
    "rocks": "the disk has completed no writes for {}",
    "kafka": "Kafka has accepted no messages for {}",
    "upstream": "the broker behind has not answered for {}",
}
"""Words for a store or broker that is unavailable, by its kind, with a place for the time."""
NO_STORE: Final = StoreStatus(kind="", read_only=False, away_s=0.0, why="")
NOT_AWAY: Final[Mapping[str, float]] = {"away_s": 0.0}
CAUSES: Final = {
    "queue": "packets wait {}",
    "loop": "the event loop is {} late",
    "store": "store commits take {}",
    "replication": "replication is {} behind",
    "memory": "memory is {} full",
}
CAUSES_OF_PROXY: Final = {**CAUSES, "store": "the broker behind acknowledges after {}"}


class Condition(StrEnum):
    CALM = "calm"
    """Every client has the whole window, and no CONNECT waits."""
    BUSY = "busy"
    """Windows are reduced, or CONNECTs wait."""
    OVERLOADED = "overloaded"
    """Clients take turns, nothing is admitted, or new sockets are rejected."""
    STALLED = "stalled"
    """The store, or the broker behind a proxy, is unavailable: work that needs it waits."""
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
    store = status.get("store", NO_STORE)
    if store["away_s"] or status.get("upstreams", NOT_AWAY)["away_s"]:
        return Condition.STALLED
    if store["read_only"]:
        return Condition.READ_ONLY
    if window["closed"] or window["granted"] < 1 or gate["rung"] != "buffer":
        return Condition.OVERLOADED
    if window["limit"] < window["limit_max"] or gate["buffered"]["used"]:
        return Condition.BUSY
    if status.get("applications", NOT_AWAY)["away_s"]:
        return Condition.BUSY
    return Condition.BUSY if status["pressure"]["value"] > 1 else Condition.CALM


def _reasons(status: Status, condition: Condition) -> list[str]:
    if condition is Condition.DRAINING:
        connected = count(status["clients"]["connected"], "client") + " still connected"
        return [progress([status]) or connected]
    found = outages(status)
    if condition is Condition.READ_ONLY:
        found.append(NO_ROOM)
    elif status["window"]["closed"]:
        found.append("the journal is full, no packets are processed")
    # Waits for an unavailable store are pressure, too, but not its cause.
    if condition is not Condition.STALLED:
        causes = CAUSES_OF_PROXY if "upstreams" in status else CAUSES
        found += cause_of(status["pressure"], causes)
    waiting, rung = status["gate"]["buffered"]["used"], status["gate"]["rung"]
    if waiting:
        found.append(count(waiting, "CONNECT") + " waiting")
    if rung != "buffer":
        found.append("new sockets are closed")
    if condition is Condition.BUSY and not found:
        found.append("the window is growing again")
    return found


def outages(status: Status) -> list[str]:
    """Return a sentence for each store that accepts nothing now."""
    store = status.get("store", NO_STORE)
    stores = {
        store["kind"]: store["away_s"],
        "kafka": status.get("applications", NOT_AWAY)["away_s"],
        "upstream": status.get("upstreams", NOT_AWAY)["away_s"],
    }
    return [outage(kind, away_s) for kind, away_s in stores.items() if away_s]


def progress(statuses: Iterable[Status]) -> str:
    """Return the progress of a drain of all these workers in words, or "" without one."""
    drains = [each["drain"] for each in statuses if each["drain"] is not None]
    if not drains:
        return ""
    clients, gone = (sum(each[key] for each in drains) for key in ("clients", "gone"))
    rest_s = max(each["rest_s"] for each in drains)
    return f"{gone:,} of {count(clients, 'client')} disconnected, {rest_s:,.0f} s left"


def outage(kind: str, away_s: float) -> str:
    """Return the sentence for a store of this kind that has been unavailable for `away_s`."""
    words = OUTAGES.get(kind, "the store has accepted no writes for {}")
    return words.format(f"{away_s:,.0f} s")


def not_ready(node: Node, now_s: float) -> str:
    """Return why the node takes no new clients now, or "" if it does; costs nothing.

    An overloaded node is ready: it admits clients in turn, and other nodes would get its load. A
    full disk or an unavailable Kafka is no reason either, because most clients need neither.
    """
    if node.state.draining or node.door.leaving:
        return "draining"
    away_s = node.outage.lasted_s(now_s)
    if away_s:
        return outage(node.settings.store.kind, away_s)
    if node.door.resting is Rest.DESCRIPTORS:
        return NO_DESCRIPTORS
    return ""


def _window(status: Status) -> str:
    window = status["window"]
    return "clients take turns" if window["granted"] < 1 else f"window {window['limit']:,}"


def cause_of(pressure: PressureStatus, causes: Mapping[str, str]) -> list[str]:
    """Return the signal that limits the node, with its value, or []."""
    cause = pressure["cause"]
    if cause is None or pressure["value"] < LIMITS_FROM:
        return []
    value = pressure["observed"][cause]
    text = f"{value * 100:.0f} %" if cause == "memory" else duration(value)
    return [causes[cause].format(text)]


def duration(value_s: float) -> str:
    """Return seconds for people: `80 ms`, `1.4 s`."""
    return f"{value_s * 1e3:.0f} ms" if value_s < 1 else f"{value_s:.1f} s"
