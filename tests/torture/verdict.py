"""The result of a run, in one sentence."""

import statistics
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum


class Moment(Enum):
    """When a broker is killed."""

    FIRST = "in an empty directory"
    START = "while it starts"
    CONNECT = "as the first client is in"
    LOAD = "under load"
    DRAIN = "while it drains"
    WORKER = "of one of several workers"


@dataclass
class Verdict:
    """The result of one run; `findings` must be empty."""

    seed: int
    store: str
    kills: Counter[Moment] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """Faults that ended no process, by name."""
    orderly_ends: int = 0
    findings: list[str] = field(default_factory=list)
    published: int = 0
    acknowledged: int = 0
    delivered: int = 0
    repeated: int = 0
    """Deliveries of what had come before: allowed at QoS 1."""
    torn: int = 0
    """Those of QoS 2: allowed where applications have their queues in Kafka."""
    restarts_s: list[float] = field(default_factory=list)
    """From the fork of the process until it serves."""
    wall_s: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {moment.value}" for moment, count in self.kills.items())
        faults = "".join(f", {count} times {name}" for name, count in self.faults.items())
        return (
            f"seed {self.seed}, store {self.store}: {self.kills.total()} kills in "
            f"{self.wall_s:.1f} s ({kills}){faults}, {self.orderly_ends} orderly ends; "
            f"{self.published} messages, {self.acknowledged} acknowledged, {self.delivered} "
            f"deliveries of which {self.repeated} repeated; restart {self.restart_ms}"
        )

    @property
    def restart_ms(self) -> str:
        if not self.restarts_s:
            return "never"
        median_s, max_s = statistics.median(self.restarts_s), max(self.restarts_s)
        return f"{median_s * 1e3:.0f} ms (median), {max_s * 1e3:.0f} ms (longest)"
