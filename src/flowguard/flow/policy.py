"""Policy: from samples to limits. One interface for flowguard's law and for those it is up against.

A policy is a pure object: samples go in every `TICK_S`, a `Grant` comes out; CONNECTs go through
its `gate`. The broker, the proxy and the simulator drive the same objects, and `--policy NAME`
chooses one by name (`flowguard.flow.policies`).
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
    """What the law did, for a person: 'cut to 84 %: store latency at 2.0 times its objective'."""
    credits: int | None = None
    """Cost units per client and tick, where a policy limits a rate; None: it does not."""
    is_cut: bool = False
    """The law has made the window smaller: what was observed before says little about now."""
    leverage: float | None = None
    """Share of the loop's work that smaller windows would put off, or None if unknown."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A CONNECT, as far as admission wants to know it."""

    client_id: str
    """Empty: the server will choose one; then nothing supersedes it."""
    size_bytes: int
    waited_s: float = 0.0
    """In the kernel's listen backlog: its client's patience has begun there, seconds."""
    held_bytes: int = 0
    """Memory of its connection until it is answered, without the CONNECT (`size_bytes`)."""


class Rung(IntEnum):
    """The answer to new connections beyond the capacity."""

    BUFFER = 0
    """CONNECTs are answered, or wait."""
    CLOSE = 1
    """New sockets are closed before TLS and MQTT: a law of another broker does that."""


class Gate(Protocol, Generic[K]):
    """Admission of CONNECTs, keyed by the caller's object for the connection (hashable).

    Every CONNECT gets exactly one outcome: ADMIT, REJECT (137), or DROP (not worth an answer).
    """

    refused: dict[Reason, int]
    """CONNECTs rejected and dropped since the start, by reason."""
    cuts: dict[Cut, int]
    """How often the limit was cut since the start, by what for."""

    @property
    def reason(self) -> Reason | None:
        """Why the last of them was rejected or dropped."""

    @property
    def limit(self) -> int:
        """CONNECTs that may be in process now."""

    @property
    def in_process(self) -> int:
        """CONNECTs admitted and not yet settled."""

    @property
    def buffered(self) -> int:
        """CONNECTs waiting for a place."""

    @property
    def buffered_bytes(self) -> int:
        """Their sizes."""

    @property
    def held_bytes(self) -> int:
        """Memory of those who wait, their connections included."""

    @property
    def rung(self) -> Rung:
        """The overload level of the node."""

    @property
    def is_ready(self) -> bool:
        """Whether `admit_next` may return an entry."""

    def holds(self, key: K) -> bool:
        """Whether its CONNECT is in process here, or waits."""

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        """A CONNECT arrived: ADMIT (settle it later), DELAY or REJECT."""

    def settle(self, key: K, now_s: float) -> None:
        """The CONNECT is answered, or its connection is gone; frees its place wherever it was."""

    def admit_next(self, now_s: float, heard_s: float | None = None) -> tuple[K, Verdict] | None:
        """Somebody who waited: ADMIT if there is a place for it, REJECT or DROP if it is late.

        `heard_s`: who had hung up by then has left, and nobody is late by a later time; None: now.
        """

    def abandon_next(self) -> K | None:
        """The oldest waiting CONNECT, taken out to be refused because the node drains."""

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """Every `TICK_S`: adapt the limit and the level to what the node has observed."""

    def retry_after_s(self, draw: float) -> float:
        """When a refused client had better come back; `draw` is uniform in [0, 1), for jitter."""

    def may_accept(self, now_s: float) -> bool:
        """Whether new sockets may be accepted now."""

    def let_in(self, waited_s: float) -> None:
        """A socket was accepted that had waited so long; ask `may_accept` before the next one."""

    def closes(self, now_s: float) -> bool:
        """Whether new sockets are accepted only to be closed at once."""

    def spent(self, cost_s: float, now_s: float) -> None:
        """Accepting and refusing took `cost_s` seconds of the loop."""


class Policy(Protocol, Generic[K]):
    """Limits of one node, from what it observes."""

    name: str
    gate: Gate[K]

    def tick(self, sample: Sample) -> Grant:
        """One step of the law; calls `gate.tick` as well."""
