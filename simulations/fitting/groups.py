"""Groups: which clients a recorded run had, when they came, and what they did after a failure."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from simulations.fitting.measured import CONNECTED
from simulations.fitting.recorded import RecordedRun

CLOSED: Final = "closed"
CONNECT_BYTES: Final = 100
"""Largest size of a client's bytes before its first message that is assumed, bytes."""
PING_BYTES: Final = 2
AGE_MIN_S: Final = 1.0
"""Age of a connection from which its kind is known."""
BUSY_SHARE: Final = 0.5
"""Share of the looks at publishers with unfinished packets from which they wait for the broker."""
DOUBLES: Final = 1.5
"""Factor from the first wait to the second above which a client doubles its wait."""
ARRIVAL_STEP_S: Final = 0.01
POINTS_MAX: Final = 300
"""Largest number of points of a trace of arrivals."""
FAILURES_MIN: Final = 5
"""Number of failures of a kind below which nothing is said of it."""


@dataclass(slots=True)
class ClientKind:
    """Clients that behave alike."""

    subscribes: bool
    publishes: bool
    durable: bool
    keep_alive_s: float = 0.0
    outstanding: int | None = None
    """Unfinished packets of a client that waits for the broker, or None for an open loop."""
    arrivals_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        role = "publishers" if self.publishes else "clients"
        if self.subscribes:
            role = "peers" if self.publishes else "subscribers"
        return role if self.durable else f"{role}-clean"

    def points(self) -> list[list[float]]:
        """Return the arrivals as a trace."""
        first_s = min(self.arrivals_s)
        step_s = max(ARRIVAL_STEP_S, (max(self.arrivals_s) - first_s) / POINTS_MAX)
        counts = Counter(int((at_s - first_s) / step_s) for at_s in self.arrivals_s)
        steps = sorted({*counts, *(step + 1 for step in counts)})
        return [[first_s + step * step_s, float(counts[step])] for step in steps]


def groups_of(run: RecordedRun, notes: list[str]) -> list[ClientKind]:
    """Return the groups of a run; what is assumed is added to `notes`."""
    arrivals_s: dict[int, float] = {}
    for client, started_s in run.rows("attempts", "client", "started_s"):
        if client >= 0:
            arrivals_s.setdefault(client, started_s - run.begin_s)
    seen = {client: kind for client, kind in _kinds(run).items() if client in arrivals_s}
    if not seen:
        notes.append("No client was looked at: they are assumed alike, with durable sessions.")
        kind = bool(sum(run.by_second("delivered_count"))), True, True
        seen = dict.fromkeys(arrivals_s, kind)
    elif len(seen) < len(arrivals_s):
        notes.append(
            f"{len(seen)} of {len(arrivals_s)} clients were looked at; each other one is like the "
            "one of these that came at the nearest time."
        )
    ordered = sorted((arrivals_s[client], kind) for client, kind in seen.items())
    times_s = [at_s for at_s, _ in ordered]
    groups: dict[tuple[bool, bool, bool], ClientKind] = {}
    for client, at_s in arrivals_s.items():
        kind = seen.get(client) or ordered[_nearest(times_s, at_s)][1]
        groups.setdefault(kind, ClientKind(*kind)).arrivals_s.append(at_s)
    _describe(run, groups, notes)
    return sorted(groups.values(), key=lambda group: group.name)


def _nearest(times_s: list[float], at_s: float) -> int:
    index = bisect_left(times_s, at_s)
    near = [i for i in (index - 1, index) if 0 <= i < len(times_s)]
    return min(near, key=lambda i: abs(times_s[i] - at_s))


def _looks(run: RecordedRun) -> list[dict[str, Any]]:
    columns = run.tables["connections"]
    rows = zip(*columns.values(), strict=True)
    looks = (dict(zip(columns, row, strict=True)) for row in rows)
    return [look for look in looks if look["age_s"] >= AGE_MIN_S]


def _kinds(run: RecordedRun) -> dict[int, tuple[bool, bool, bool]]:
    """Return by client: whether it subscribes, publishes, and has a durable session."""
    looks = _looks(run)
    messages = sum(run.by_second("published_count"))
    payload_bytes = sum(run.by_second("payload_bytes")) / max(1.0, messages)
    first_bytes = min([CONNECT_BYTES, *(look["received_bytes"] for look in looks)])
    spoke: dict[int, bool] = {}
    subscribes: dict[int, bool] = {}
    durable: dict[int, bool] = {}
    for look in looks:
        client, keep_alive_s = look["client"], look["keep_alive_s"]
        pings = PING_BYTES * look["age_s"] / keep_alive_s if keep_alive_s else 0.0
        said_bytes = look["received_bytes"] - first_bytes - pings
        is_message = messages > 0 and said_bytes > max(1.0, payload_bytes)
        spoke[client] = spoke.get(client, False) or is_message
        subscribes[client] = subscribes.get(client, False) or look["subscriptions_count"] > 0
        durable[client] = look["is_durable"]
    # Acknowledgements of a subscriber look like messages, unless no other client publishes.
    are_peers = messages > 0 and not any(spoke[c] for c in spoke if not subscribes[c])
    return {
        client: (subscribes[client], are_peers if subscribes[client] else is_loud, durable[client])
        for client, is_loud in spoke.items()
    }


def _describe(
    run: RecordedRun, groups: dict[tuple[bool, bool, bool], ClientKind], notes: list[str]
) -> None:
    """Add keep-alive and closed loops to the groups, from the looks at their clients."""
    kinds = _kinds(run)
    looks = _looks(run)
    for kind, group in groups.items():
        mine = [look for look in looks if kinds[look["client"]] == kind]
        if not mine:
            continue
        group.keep_alive_s = round(median(look["keep_alive_s"] for look in mine), 1)
        busy = [look["in_process_count"] for look in mine if look["in_process_count"]]
        if group.publishes and len(busy) > BUSY_SHARE * len(mine):
            group.outstanding = max(busy)
            notes.append(
                f"{group.name}: packets of {len(busy) / len(mine):.0%} of the clients were in "
                "process at each look, so their demand is unknown: a closed loop is assumed with "
                f"{group.outstanding} messages."
            )


# --- failures ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Failures:
    """Actions of clients after failed attempts."""

    waits_s: list[list[float]] = field(default_factory=list)
    """Times until the next attempt, by number of failures in a row."""
    closed_s: list[float] = field(default_factory=list)
    """Durations of attempts that ended without an answer."""
    last_count: int = 0
    """Failures without another attempt."""

    def add(self, attempts: list[tuple[float, float, str]]) -> None:
        """Add the attempts of one client, in order."""
        failures = 0
        for index, (started_s, ended_s, outcome) in enumerate(attempts):
            if outcome == CONNECTED:
                failures = 0
                continue
            failures += 1
            if outcome == CLOSED:
                self.closed_s.append(ended_s - started_s)
            if index + 1 == len(attempts):
                self.last_count += 1
                continue
            if len(self.waits_s) < failures:
                self.waits_s.append([])
            self.waits_s[failures - 1].append(max(0.001, attempts[index + 1][0] - ended_s))

    def retry(self, notes: list[str]) -> dict[str, Any] | None:
        """Return the key `retry`, or None if there were hardly any failures."""
        if self.last_count + sum(map(len, self.waits_s)) < FAILURES_MIN:
            notes.append("No attempts failed: retries after 1 to 60 s, doubling, are assumed.")
            return None
        if not self.waits_s:
            notes.append("No client tried again after a failure.")
            return {"kind": "none"}
        notes.append("Whether clients obey retry-after-ms cannot be seen: none does here.")
        first_s = median(self.waits_s[0])
        second_s = self.waits_s[1] if len(self.waits_s) > 1 else []
        if len(second_s) < FAILURES_MIN:
            notes.append("Hardly any client failed twice in a row: doubling waits are assumed.")
        elif median(second_s) <= DOUBLES * first_s:
            return {"kind": "fixed", "first_s": round(first_s, 3)}
        retry = {"kind": "backoff", "first_s": round(first_s, 3)}
        if len(self.waits_s) > FAILURES_MIN:
            retry["max_s"] = round(max(map(max, self.waits_s)), 1)
        return retry


def retries_of(run: RecordedRun, notes: list[str]) -> dict[str, Any]:
    """Return the keys `retry` and `timeout_s` of all populations."""
    by_client: dict[int, list[tuple[float, float, str]]] = {}
    for client, started_s, ended_s, outcome in run.rows(
        "attempts", "client", "started_s", "ended_s", "outcome"
    ):
        if client >= 0:
            by_client.setdefault(client, []).append((started_s, ended_s, outcome))
    failures = _Failures()
    for attempts in by_client.values():
        failures.add(attempts)
    found: dict[str, Any] = {}
    if len(failures.closed_s) >= FAILURES_MIN:
        found["timeout_s"] = round(max(0.01, median(failures.closed_s)), 3)
    else:
        notes.append("No client gave up waiting for CONNACK: a timeout of 10 s is assumed.")
    retry = failures.retry(notes)
    return found if retry is None else found | {"retry": retry}
