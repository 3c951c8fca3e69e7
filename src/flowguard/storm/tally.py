"""Counts and percentiles of a storm, and their form as plain values for JSON."""

import math
from collections import Counter
from typing import final

RESOLUTION = 1.02
"""Latencies are kept with a precision of 2 %, so that a million of them cost as much as a
hundred."""
LATENCY_MIN_S = 1e-6
SHARES = (50, 99, 100)
"""Percentages of the clients for which a storm says when that many were connected."""
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

    def percentile_s(self, percent: float) -> float | None:
        """The nearest-rank percentile, at most 2 % too high; None without values."""
        return self.rank_s(max(1, math.ceil(self.count * percent / 100)))

    def rank_s(self, rank: int) -> float | None:
        """The value of this rank, 1 for the least, at most 2 % too high; None: there are fewer."""
        if rank == self.count:
            return self.max_s
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.max_s, LATENCY_MIN_S * RESOLUTION**bucket)
        return None

    def result_ms(self) -> dict[str, float | None]:
        """p50, p90, p99 and max, milliseconds."""
        values = {f"p{percent}": self.percentile_s(percent) for percent in (50, 90, 99)}
        values["max"] = self.max_s if self.count else None
        return {
            key: None if value_s is None else round(value_s * 1e3, 3)
            for key, value_s in values.items()
        }


@final
class ConnectTally:
    """The fate of every attempt to connect, and of every connection."""

    __slots__ = (
        "clients",
        "attempts",
        "accepted",
        "busy",
        "refused",
        "resets",
        "closed",
        "unreachable",
        "timeouts",
        "broken",
        "local",
        "connected",
        "trying",
        "gave_up",
        "came_back",
        "lost",
        "ended",
        "attempts_max",
        "seconds",
        "started_s",
        "after_start",
        "to_connected",
        "answer",
    )

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.attempts = 0
        # Each attempt that is over is one of these:
        self.accepted = 0
        self.busy = 0
        """Answers CONNACK 137 (5.0) or 3 (3.1.1): come back later."""
        self.refused: Counter[int] = Counter()
        """Other refusals, by reason code in the words of MQTT 5.0."""
        self.resets = 0
        self.closed = 0
        """Connections closed without an answer, but not by a reset."""
        self.unreachable = 0
        """Attempts without a TCP connection."""
        self.timeouts = 0
        """Attempts without an answer in time."""
        self.broken = 0
        """Answers that are not MQTT."""
        self.local = 0
        """Attempts for which this machine had no descriptor or port left."""
        # Clients:
        self.connected = 0
        self.trying = 0
        self.gave_up = 0
        self.came_back = 0
        """Clients that were told 137 or 3 at least once, and got in."""
        self.lost = 0
        """Connections that the broker's side ended after CONNACK."""
        self.ended: Counter[int] = Counter()
        """DISCONNECTs that the broker sent, by reason code."""
        self.attempts_max = 0
        self.seconds = 0.0
        """Time from the first attempt until nobody tried any more."""
        self.started_s = 0.0
        """Instant at which the first attempt was due, by the clock of the storm."""
        self.after_start = LatencyHistogram()
        """Time from that instant to each client's CONNACK 0."""
        self.to_connected = LatencyHistogram()
        """Time from a client's first attempt to its CONNACK 0."""
        self.answer = LatencyHistogram()
        """Time from the start of an attempt to its CONNACK, whatever it said."""

    @property
    def settled(self) -> bool:
        """Whether nobody tries any more."""
        return self.trying == 0

    def share_in_s(self, percent: float) -> float | None:
        """How long after the start this share of all clients was in; None: it never was."""
        return self.after_start.rank_s(max(1, math.ceil(self.clients * percent / 100)))

    def result(self) -> Result:
        return {
            "clients": self.clients,
            "connected": self.connected,
            "trying": self.trying,
            "gave_up": self.gave_up,
            "came_back": self.came_back,
            "lost": self.lost,
            "ended": _by_code(self.ended),
            "attempts": self.attempts,
            "attempts_mean": round(self.attempts / max(1, self.clients), 3),
            "attempts_max": self.attempts_max,
            "connect_seconds": round(self.seconds, 3),
            "accepted": self.accepted,
            "busy": self.busy,
            "refused": _by_code(self.refused),
            "resets": self.resets,
            "closed": self.closed,
            "unreachable": self.unreachable,
            "timeouts": self.timeouts,
            "broken": self.broken,
            "local": self.local,
            "connected_after_s": {
                f"p{percent}": None if after_s is None else round(after_s, 6)
                for percent in SHARES
                for after_s in (self.share_in_s(percent),)
            },
            "time_to_connected_ms": self.to_connected.result_ms(),
            "answer_ms": self.answer.result_ms(),
        }


def _by_code(counts: Counter[int]) -> dict[str, int]:
    return {f"0x{code:02x}": count for code, count in sorted(counts.items())}


@final
class TrafficTally:
    """Messages sent, and deliveries: a message counts once for each subscriber."""

    __slots__ = (
        "sent",
        "acknowledged",
        "refused",
        "received",
        "expected",
        "missing",
        "acknowledged_lost",
        "duplicates",
        "stalls",
        "refusals",
        "slow_received",
        "slow_lost",
        "silence_s",
        "heard_at_s",
        "received_at_s",
        "catch_up_s",
        "seconds",
        "acknowledgement",
        "delivery",
    )

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.refused = 0
        """PUBLISHes answered with an error."""
        self.received = 0
        self.expected = 0
        """Deliveries owed for what was sent."""
        self.missing = 0
        """Deliveries that never came; QoS 0 may lose."""
        self.acknowledged_lost = 0
        """Missing deliveries of messages that the broker had acknowledged to their publisher."""
        self.duplicates = 0
        self.stalls = 0
        """QoS 0 only: how often deliveries were given up so that a publisher could go on."""
        self.refusals: Counter[int] = Counter()
        """PUBLISHes answered with an error, by reason code of PUBACK, PUBREC or PUBCOMP."""
        self.slow_received = 0
        """Deliveries to subscribers that read slowly, part of `received`."""
        self.slow_lost = 0
        """The part of `acknowledged_lost` that slow subscribers never got."""
        self.silence_s = 0.0
        """The longest time without any acknowledgement, while messages were published."""
        self.heard_at_s = 0.0
        self.received_at_s = 0.0
        """Instant of the last acknowledgement, and of the last delivery."""
        self.catch_up_s = 0.0
        """Time from the last PUBLISH to the last delivery."""
        self.seconds = 0.0
        """How long publishers published."""
        self.acknowledgement = LatencyHistogram()
        """Time from PUBLISH to PUBACK or PUBCOMP."""
        self.delivery = LatencyHistogram()
        """Time from the instant a message was due to its arrival."""

    def heard(self, now_s: float) -> None:
        """An acknowledgement came."""
        self.silence_s = max(self.silence_s, now_s - self.heard_at_s)
        self.heard_at_s = now_s

    def result(self) -> Result:
        seconds = max(self.seconds, 1e-9)
        return {
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "publish_refused": self.refused,
            "expected": self.expected,
            "received": self.received,
            "missing": self.missing,
            "acknowledged_lost": self.acknowledged_lost,
            "duplicates": self.duplicates,
            "stalls": self.stalls,
            "publish_refusals": _by_code(self.refusals),
            "slow_received": self.slow_received,
            "slow_lost": self.slow_lost,
            "silence_seconds": round(self.silence_s, 3),
            "catch_up_seconds": round(self.catch_up_s, 3),
            "seconds": round(self.seconds, 3),
            "sent_per_s": round(self.sent / seconds, 1),
            "received_per_s": round(self.received / seconds, 1),
            "acknowledgement_ms": self.acknowledgement.result_ms(),
            "delivery_ms": self.delivery.result_ms(),
        }
