"""Gates of a few places, and a crowd at one, for the tests of the gate."""

from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Verdict
from flowguard.flow.policy import Arrival, Gate
from flowguard.flow.signals import CALM, TICK_S, Pressure, Sample, Signal
from flowguard.flow.waiting import AGEING_S

K = TypeVar("K")
PATIENCE_S = 8.0
CLIENT_IDS = st.sampled_from(["", "", "a", "b", "c"])


@dataclass
class Guest:
    """One who waits, in a model of those who do."""

    key: int
    arrival: Arrival
    since_s: float
    late: bool = False

    @property
    def rank(self) -> tuple[float, float]:
        """The smaller goes first."""
        return self.since_s + AGEING_S * self.arrival.resumption, self.since_s


def settings_of(
    limit: int = 1,
    buffer_max: int = 10,
    buffer_bytes_max: int = 10_000,
    patience_s: float = PATIENCE_S,
) -> FlowSettings:
    return FlowSettings(
        connects_in_process_max=limit,
        connect_buffer_max=buffer_max,
        connect_buffer_bytes_max=buffer_bytes_max,
        connect_patience_s=patience_s,
    )


def gate_of(
    limit: int = 1, buffer_max: int = 10, buffer_bytes_max: int = 10_000
) -> ConnectGate[str]:
    return ConnectGate(settings_of(limit, buffer_max, buffer_bytes_max))


def tick(
    gate: Gate[K],
    now_s: float,
    pressure: float,
    cause: Signal = Signal.LOOP,
    response_s: float = 0.0,
) -> None:
    """A tick of a node under that pressure, whose packets take `response_s`."""
    gate.tick(Sample(now_s, response_s=response_s), Pressure(pressure, cause, {cause: pressure}))


def arrival_of(client_id: str = "", size_bytes: int = 100) -> Arrival:
    return Arrival(client_id, size_bytes)


class Busy:
    """A gate with one place that serves ten CONNECTs per second; twice as many have come."""

    def __init__(self, buffer_max: int) -> None:
        self.gate: ConnectGate[int] = ConnectGate(settings_of(1, buffer_max))
        self.keys = 0
        self.now_s = 0.0
        self.come()
        for inside in range(20):
            assert self.come() is self.come() is Verdict.DELAY
            self.now_s += 0.1
            self.gate.settle(inside, self.now_s)
            assert self.gate.admit_next(self.now_s) == (inside + 1, Verdict.ADMIT)
        assert 9.0 <= self.gate.completion_rate <= 11.0
        assert self.gate.buffered == 20

    def come(self) -> Verdict:
        self.keys += 1
        return self.gate.offer(self.keys - 1, arrival_of(), self.now_s)


class Crowd:
    """A gate that has doubled, and in every tick serves as many as there are places."""

    def __init__(self, *, others_wait: bool) -> None:
        self.gate: ConnectGate[int] = ConnectGate(settings_of(1_024, 10_000, 10_000_000))
        self.now_s = 0.0
        self._others_wait = others_wait
        self._inside: list[int] = []
        self._keys = 0
        for _ in range(4):
            self.tick(Sample(0.0))
        assert self.gate.limit >= 64

    def tick(self, loop: Sample) -> None:
        """Everybody inside is done, others take their places, and the loop says what it did."""
        self.now_s += TICK_S
        for key in self._inside:
            self.gate.settle(key, self.now_s)
        self._inside.clear()
        while (admitted := self.gate.admit_next(self.now_s)) is not None:
            self._inside.append(admitted[0])
        limit = self.gate.limit
        for _ in range(2 * limit if self._others_wait else limit - self.gate.in_process):
            self._keys += 1
            if self.gate.offer(self._keys, arrival_of(), self.now_s) is Verdict.ADMIT:
                self._inside.append(self._keys)
        self.gate.tick(replace(loop, now_s=self.now_s), CALM)
