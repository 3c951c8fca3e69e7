"""Policy: from samples to limits. One interface for flowguard's law and for those to compare it
with.

A policy is a pure object: it gets a sample every `TICK_S` and returns a `Grant`; CONNECTs pass its
`gate`. The broker, the proxy and the simulator drive the same objects, and `--policy NAME` chooses
one by name (`flowguard.flow.policies`).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from flowguard.flow.load.signals import CALM, Pressure, Sample
from flowguard.flow.verdict import Cut, Reason, Verdict

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Grant:
    """The limits on every client of the node until the next tick."""

    window: float
    """Cost units of one client in process; below 1 clients take turns."""
    pressure: Pressure = CALM
    why: str = ""
    """Explanation for a person: 'cut to 84 %: store latency at 2.0 times its objective'."""
    credits: int | None = None
    """Cost units per client and tick, or None if the policy does not limit a rate."""
    is_cut: bool = False
    """True if the law has made the window smaller, so that earlier observations predict little."""
    leverage: float | None = None
    """Share of the loop's work that smaller windows would put off, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The facts about a CONNECT that admission needs."""

    client_id: str
    """The client id, or "" if the server will choose one; then no CONNECT supersedes it."""
    size_bytes: int
    waited_s: float = 0.0
    """Time in the kernel's listen backlog, in which its client's timeout already runs, seconds."""
    held_bytes: int = 0
    """Memory of its connection until it is answered, without the CONNECT (`size_bytes`)."""


class Rung(IntEnum):
    """The answer to new connections beyond the capacity."""

    BUFFER = 0
    """CONNECTs are answered, or wait."""
    CLOSE = 1
    """New sockets are closed before TLS and MQTT, as by a law of another broker."""


class Gate(Protocol, Generic[K]):
    """Admission of CONNECTs, keyed by the caller's object for the connection (hashable).

    Every CONNECT gets exactly one outcome: ADMIT, REJECT (137), or DROP (not worth an answer).
    """

    refused: dict[Reason, int]
    """CONNECTs rejected and dropped since the start, by reason."""
    cuts: dict[Cut, int]
    """How often the limit was cut since the start, by cause."""

    @property
    def reason(self) -> Reason | None:
        """Reason of the last rejection or drop."""

    @property
    def limit(self) -> int:
        """Number of CONNECTs that may be in process now."""

    @property
    def in_process(self) -> int:
        """CONNECTs admitted and not yet settled."""

    @property
    def buffered(self) -> int:
        """Number of CONNECTs that wait for a slot."""

    @property
    def buffered_bytes(self) -> int:
        """Total size of the waiting CONNECTs."""

    @property
    def held_bytes(self) -> int:
        """Memory of the waiting CONNECTs and their connections."""

    @property
    def rung(self) -> Rung:
        """The overload level of the node."""

    @property
    def late_claims_max(self) -> float:
        """How many CONNECTs whose clients have left may wait for a store that stands still."""

    @property
    def is_ready(self) -> bool:
        """True if `admit_next` may return an entry."""

    def holds(self, key: K) -> bool:
        """Return True if its CONNECT is in process in this gate, or waits."""

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        """A CONNECT arrived: ADMIT (settle it later), DELAY or REJECT."""

    def settle(self, key: K, now_s: float) -> None:
        """The CONNECT is answered, or its connection has ended. Frees its slot or its entry."""

    def admit_next(self, now_s: float, heard_s: float | None = None) -> tuple[K, Verdict] | None:
        """Return the next waiting CONNECT: ADMIT if a slot is free, REJECT or DROP if it is late.

        `heard_s`: clients that had hung up by then have left, and no client is late by a later
        time. If it is None, `now_s` takes its place.
        """

    def abandon_next(self) -> K | None:
        """Remove and return the oldest waiting CONNECT, to be rejected because the node drains."""

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """Every `TICK_S`: adapt the limit and the level to what the node has observed."""

    def retry_after_s(self, draw: float) -> float:
        """Return the retry-after time of a rejected client; `draw` is uniform in [0, 1), for
        jitter."""

    def may_accept(self, now_s: float) -> bool:
        """Return True if new sockets may be accepted now."""

    def let_in(self, waited_s: float) -> None:
        """A socket was accepted that had waited `waited_s`; ask `may_accept` before the next
        one."""

    def closes(self, now_s: float) -> bool:
        """Return True if new sockets are accepted only to be closed at once."""

    def spent(self, cost_s: float, now_s: float) -> None:
        """Accepting and rejecting took `cost_s` seconds of the loop."""


class Policy(Protocol, Generic[K]):
    """Limits of one node, from what it observes."""

    name: str
    gate: Gate[K]

    def tick(self, sample: Sample) -> Grant:
        """One step of the law; calls `gate.tick` as well."""
