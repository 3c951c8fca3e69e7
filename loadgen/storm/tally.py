"""Counts and percentiles of a storm, and their form as plain values for JSON."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import final

from loadgen.storm.loop import Fate

RESOLUTION = 1.02
"""Latencies are kept with a precision of 2 %, so that a million of them cost as much as a
hundred."""
LATENCY_MIN_S = 1e-6
FATES = {
    Fate.RESET: "reset",
    Fate.CLOSED: "closed unanswered",
    Fate.UNREACHABLE: "unreachable",
    Fate.BROKEN: "broken answer",
    Fate.TLS: "failed in TLS",
    Fate.WEBSOCKET: "failed in WebSocket",
    Fate.LOCAL: "no port or descriptor here",
}
SHARES = (50, 99, 100)
"""Percentages of the clients for which a storm reports when they were connected."""
_LOG = math.log(RESOLUTION)

Result = dict[str, int | float | dict[str, int] | dict[str, float | None]]


@final
class LatencyHistogram:
    """A histogram with logarithmic buckets; the largest value is kept exactly."""

    __slots__ = ("_buckets", "count", "max_s")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_s = 0.0

    def record(self, latency_s: float) -> None:
        self.count += 1
        if latency_s > self.max_s:
            self.max_s = latency_s
        ratio = max(1.0, latency_s / LATENCY_MIN_S)
        self._buckets[math.ceil(math.log(ratio) / _LOG)] += 1

    def add(self, other: "LatencyHistogram") -> None:
        """Add the values of another histogram."""
        self.count += other.count
        self.max_s = max(self.max_s, other.max_s)
        self._buckets += other._buckets

    def percentile_s(self, percent: float) -> float | None:
        """Return the nearest-rank percentile, at most 2 % too high, or None without values."""
        return self.rank_s(max(1, math.ceil(self.count * percent / 100)))

    def rank_s(self, rank: int) -> float | None:
        """Return the value of this rank (1 is the least), at most 2 % too high, or None if there
        are fewer."""
        if rank == self.count:
            return self.max_s
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.max_s, LATENCY_MIN_S * RESOLUTION**bucket)
        return None

    def result_ms(self) -> dict[str, float | None]:
        """Return p50, p90, p99 and max, milliseconds."""
        values = {f"p{percent}": self.percentile_s(percent) for percent in (50, 90, 99)}
        values["max"] = self.max_s if self.count else None
        return {
            key: None if value_s is None else round(value_s * 1e3, 3)
            for key, value_s in values.items()
        }


def _by_code(counts: Counter[int]) -> dict[str, int]:
    return {f"0x{code:02x}": count for code, count in sorted(counts.items())}


def _results(tally: object, names: str) -> Result:
    """Return these attributes as plain values; codes in hexadecimal, latencies in milliseconds."""
    found: Result = {}
    for name in names.split():
        value = getattr(tally, name)
        if isinstance(value, LatencyHistogram):
            found[f"{name}_ms"] = value.result_ms()
        else:
            found[name] = _by_code(value) if isinstance(value, Counter) else value
    return found


@final
@dataclass(slots=True)
class ConnectTally:
    """The fate of every attempt to connect, and of every connection."""

    clients: int
    attempts: int = 0
    # Each finished attempt is one of these:
    accepted: int = 0
    busy: int = 0
    """Answers CONNACK 137 (5.0) or 3 (3.1.1), which mean "busy"."""
    refused: Counter[int] = field(default_factory=Counter)
    """Other rejections, by reason code of MQTT 5.0."""
    fates: Counter[Fate] = field(default_factory=Counter)
    """Attempts without an answer, by the end of their connections."""
    layer_fault: str = ""
    """Why the last attempt failed below MQTT, in TLS or WebSocket, or ""."""
    timeouts: int = 0
    """Attempts without an answer in time."""
    # Clients:
    connected: int = 0
    trying: int = 0
    gave_up: int = 0
    came_back: int = 0
    """Connected clients that had been rejected with 137 or 3 at least once."""
    lost: int = 0
    """Connections that the broker's side ended after CONNACK."""
    ended: Counter[int] = field(default_factory=Counter)
    """DISCONNECTs that the broker sent, by reason code."""
    attempts_max: int = 0
    seconds: float = 0.0
    """Time from the first attempt until the last client was connected or had given up."""
    started_s: float = 0.0
    """Instant at which the first attempt was due, by the clock of the storm."""
    after_start: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from that instant to each client's CONNACK 0."""
    to_connected: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from a client's first attempt to its CONNACK 0."""
    answer: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from the start of an attempt to its CONNACK, with any reason code."""

    @property
    def settled(self) -> bool:
        return self.trying == 0

    @property
    def failures(self) -> dict[str, int]:
        """Attempts that were not answered, or not by MQTT, by their names in a result."""
        ends = {name: self.fates[fate] for fate, name in FATES.items()}
        return {**ends, "timed out": self.timeouts}

    def share_in_s(self, percent: float) -> float | None:
        """Return when this share of all clients was connected, since the start, or None if it never
        was."""
        return self.after_start.rank_s(max(1, math.ceil(self.clients * percent / 100)))

    def result(self) -> Result:
        after_s = {percent: self.share_in_s(percent) for percent in SHARES}
        return {
            **_results(self, "clients connected trying gave_up came_back lost ended attempts"),
            "attempts_mean": round(self.attempts / max(1, self.clients), 3),
            "attempts_max": self.attempts_max,
            "connect_seconds": round(self.seconds, 3),
            **_results(self, "accepted busy refused timeouts"),
            **{fate.value: self.fates[fate] for fate in Fate},
            "connected_after_s": {
                f"p{percent}": None if s is None else round(s, 6) for percent, s in after_s.items()
            },
            "time_to_connected_ms": self.to_connected.result_ms(),
            **_results(self, "answer"),
        }


@final
@dataclass(slots=True)
class TrafficTally:
    """Messages sent, and deliveries: a message counts once for each subscriber."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    """PUBLISHes answered with an error."""
    received: int = 0
    expected: int = 0
    """Deliveries owed for the messages sent."""
    missing: int = 0
    """Deliveries that never arrived; QoS 0 may lose some."""
    acknowledged_lost: int = 0
    """Missing deliveries of messages that the broker had acknowledged to their publisher."""
    duplicates: int = 0
    strays: int = 0
    """Messages at a subscriber that none of its publishers has sent."""
    stalls: int = 0
    """QoS 0 only: how often deliveries were given up so that a publisher could go on."""
    subscribe_refusals: Counter[int] = field(default_factory=Counter)
    """SUBSCRIBEs answered with an error, by reason code."""
    refusals: Counter[int] = field(default_factory=Counter)
    """PUBLISHes answered with an error, by reason code of PUBACK, PUBREC or PUBCOMP."""
    slow_received: int = 0
    """Deliveries to subscribers that read slowly, part of `received`."""
    slow_lost: int = 0
    """The part of `acknowledged_lost` that slow subscribers never got."""
    slow_cut: int = 0
    """Slow subscribers that were disconnected."""
    silence_s: float = 0.0
    """The longest time without any acknowledgement, while messages were published."""
    heard_at_s: float = 0.0
    received_at_s: float = 0.0
    """Instant of the last acknowledgement, and of the last delivery."""
    catch_up_s: float = 0.0
    """Time from the last PUBLISH to the last delivery."""
    seconds: float = 0.0
    """Time for which publishers published."""
    acknowledgement: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from PUBLISH to PUBACK or PUBCOMP."""
    delivery: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from the instant a message was due to its arrival."""

    def heard(self, now_s: float) -> None:
        self.silence_s = max(self.silence_s, now_s - self.heard_at_s)
        self.heard_at_s = now_s

    def result(self) -> Result:
        seconds = max(self.seconds, 1e-9)
        return {
            **_results(self, "sent acknowledged expected received missing acknowledged_lost"),
            **_results(self, "subscribe_refusals"),
            "publish_refused": self.refused,
            "publish_refusals": _by_code(self.refusals),
            **_results(self, "duplicates strays stalls slow_received slow_lost slow_cut"),
            "silence_seconds": round(self.silence_s, 3),
            "catch_up_seconds": round(self.catch_up_s, 3),
            "seconds": round(self.seconds, 3),
            "sent_per_s": round(self.sent / seconds, 1),
            "received_per_s": round(self.received / seconds, 1),
            **_results(self, "acknowledgement delivery"),
        }
