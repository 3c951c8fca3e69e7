"""E9: a node under the highest pressure answers every PINGREQ and cuts nobody off for silence.

1,000 publishers fill their windows at a slow store, so that nearly all of them are paused all the
time; each also asks PINGREQ. The pressure is forced by the broker's program.
"""

from dataclasses import dataclass

from benchmarks.checks import Check, Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions

from .flood import flooded
from .subject import Subject

KEY = "overload-e9"
CLIENTS = 1_000
KEEP_ALIVE_S = 10
PING_S = 2.0
"""Well within the keep-alive, so that there are enough answers for a percentile."""
WARM_UP_S, PRESSED_S = 5.0, 120.0
PAYLOADS = (16, 64)
"""Bytes: a Receive Maximum of small messages fits the 64 KiB that the broker looks ahead, one of
1,000 larger ones does not, and whoever has more unread than that is answered when it is read."""
PONG_MAX_MS = 250.0
KEEP_ALIVE_TIMEOUT = "0x8d"


@dataclass(frozen=True)
class Run:
    """One size of payload: what a client may have on its way fits the look-ahead, or not."""

    payload_bytes: int
    pongs: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    unanswered: int
    """PINGREQ still without an answer at the end."""
    cut_off: int
    """DISCONNECT with keep alive timeout."""
    lost_connections: int
    acknowledged: int
    paused: float
    """Clients paused, the mean of all seconds."""
    pressure: float
    """The least that the node reported."""


@dataclass(frozen=True)
class KeepAlive:
    seconds: float
    keep_alive_s: int
    runs: tuple[Run, ...]

    @property
    def ping_s(self) -> float:
        return min(PING_S, self.keep_alive_s / 2)

    @property
    def open_max(self) -> float:
        """How many may be on their way at any instant, if each takes no longer than it may."""
        return CLIENTS * PONG_MAX_MS / 1e3 / self.ping_s

    def report(self) -> Report:
        checks: list[Check] = []
        for run in self.runs:
            name = f"payload {run.payload_bytes}"
            checks += [
                none_of(f"{name}: keep-alive disconnects", run.cut_off),
                none_of(f"{name}: connections lost", run.lost_connections),
                at_most(f"{name}: PINGREQ to PINGRESP, p99", run.p99_ms, PONG_MAX_MS, " ms", 1),
                at_most(f"{name}: PINGREQ open at the end", run.unanswered, self.open_max),
            ]
        pressure = min(run.pressure for run in self.runs)
        checks.append(
            Check(
                "the test bites: pressure held, longer than a keep-alive",
                f"{pressure:g} for {self.seconds:g} s",
                f"16 for > {self.keep_alive_s} s",
                pressure >= 16 and self.seconds > self.keep_alive_s,
            )
        )
        return Report(
            KEY,
            "E9: keep-alive under forced pressure",
            f"Asked for: 1,000 clients, keep-alive 10 s, pressure 16 for 120 s. Scaled to "
            f"{CLIENTS:,} clients, keep-alive {self.keep_alive_s} s, {self.seconds:g} s; each "
            f"publishes all that Receive Maximum lets it, {PAYLOADS[0]} and {PAYLOADS[1]} bytes, "
            f"and asks PINGREQ every {self.ping_s:g} s.",
            tuple(checks),
            (Grid.of(COLUMNS, self.runs),),
        )


COLUMNS: Columns[Run] = {
    "payload": lambda run: f"{run.payload_bytes}",
    "PINGRESP": lambda run: f"{run.pongs:,}",
    "p50 ms": lambda run: f"{run.p50_ms:,.1f}",
    "p99 ms": lambda run: f"{run.p99_ms:,.1f}",
    "max ms": lambda run: f"{run.max_ms:,.1f}",
    "open at the end": lambda run: f"{run.unanswered:,}",
    "paused clients": lambda run: f"{run.paused:,.0f}",
    "acknowledged": lambda run: f"{run.acknowledged:,}",
}


def measure(conditions: Conditions) -> KeepAlive:
    seconds = conditions.scaled(PRESSED_S / len(PAYLOADS), 5.0)
    keep_alive_s = max(1, min(KEEP_ALIVE_S, round(seconds / 4)))
    runs = tuple(measure_one(conditions, size, seconds, keep_alive_s) for size in PAYLOADS)
    return KeepAlive(seconds, keep_alive_s, runs)


def measure_one(
    conditions: Conditions, payload_bytes: int, seconds: float, keep_alive_s: int
) -> Run:
    crowd = {
        "flooders": CLIENTS,
        "subscribers": 4,
        "topics": 4,
        "probes": 0,
        "payload": payload_bytes,
        "keep_alive": keep_alive_s,
        "ping": min(PING_S, keep_alive_s / 2),
    }
    with flooded(Subject("flowguard"), conditions, **crowd) as (broker, flood):
        broker.press()
        flood.phase("closed", 65_535, CLIENTS, conditions.scaled(WARM_UP_S, 1.0))
        total = flood.phase("closed", 65_535, CLIENTS, seconds).total
        rows = broker.rows(since_s=total.began_s)
        books = flood.finish()
    return Run(
        payload_bytes,
        total.pong.count,
        total.pong.p50,
        total.pong.p99,
        total.pong.max,
        total.unanswered_pings,
        books.disconnects.get(KEEP_ALIVE_TIMEOUT, 0),
        books.lost_connections,
        total.acknowledged,
        sum(r["paused"] for r in rows) / max(1, len(rows)),
        min((r["pressure"] for r in rows), default=0.0),
    )
