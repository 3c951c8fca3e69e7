"""Gates of a few places, and a crowd at one, for the tests of the gate."""

from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Verdict
from flowguard.flow.load.signals import Pressure, Sample, Signal
from flowguard.flow.policy import Arrival, Gate

K = TypeVar("K")
PATIENCE_S = 8.0
CLIENT_IDS = st.sampled_from(["", "", "a", "b", "c"])


@dataclass
class Guest:
    """A waiting CONNECT in a model of the queue."""

    key: int
    arrival: Arrival
    since_s: float
    late: bool = False


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
    """Tick a gate under that pressure; packets of the node take `response_s`."""
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
