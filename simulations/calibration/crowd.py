"""Crowd: real clients that connect as a simulated population does.

Arrivals and jitter come from the same draws as in `crowd.clients`: client 7 of a population
connects at the same instant in both, and waits equally long before its third attempt.
"""

from array import array
from collections.abc import Callable
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Final, final

from flowguard.codec import Connack, Connect, Packet, encode
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties
from loadgen.storm.loop import Fate, Wire
from simulations.calibration.load import Load
from simulations.calibration.process import CalibrationError
from simulations.crowd.clients import NEVER_S
from simulations.crowd.connection import Outcome
from simulations.crowd.retry import Retry
from simulations.draws import Draws
from simulations.scenario import PopulationPlan

SESSION_EXPIRY_S: Final = 3_600
RECEIVE_MAXIMUM: Final = 65_535
"""Receive Maximum of a CONNACK that does not state one."""


@final
class _Call:
    __slots__ = ("client", "crowd", "is_over", "number", "wire")

    def __init__(self, crowd: "RealCrowd", client: int, number: int, now_s: float) -> None:
        self.crowd = crowd
        self.client = client
        self.number = number
        self.is_over = False
        self.wire: Wire | None = crowd.load.loop.dial(self, now_s)

    def opened(self, now_s: float) -> None:
        assert self.wire is not None
        self.wire.sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.wire.write(encode(self.crowd.connect_packet(self.client), MQTT_5))

    def receive(self, packet: Packet, now_s: float) -> None:
        if self.is_over or not isinstance(packet, Connack):
            raise CalibrationError(f"the broker said something unexpected: {packet!r:.64}")
        if not packet.reason_code:
            self.crowd.accepted(self, now_s, packet)
        else:
            self.crowd.failed(self, now_s, Outcome.REFUSED, _hint_s(packet))

    def closed(self, fate: Fate, now_s: float) -> None:
        if self.is_over:
            raise CalibrationError(f"the broker hung up: {fate.value}")
        is_closed = fate in (Fate.CLOSED, Fate.RESET)
        outcome = Outcome.CLOSED if is_closed else Outcome.UNREACHABLE
        self.crowd.failed(self, now_s, outcome, None)

    def time_out(self, now_s: float) -> None:
        if not self.is_over:
            self.crowd.failed(self, now_s, Outcome.TIMED_OUT, None)


@final
class RealCrowd:
    def __init__(self, load: Load, name: str, plan: PopulationPlan, seed: int) -> None:
        self.load = load
        self.name = name
        self.plan = plan
        self.first_connected_s = array("d", [NEVER_S]) * plan.clients
        """Time from the start to each client's first CONNACK."""
        self.first_connected_count = 0
        self.given_up_count = 0
        self.on_connected: Callable[[int, Wire, int, float], None] | None = None
        """Called with a client, its connection, the broker's Receive Maximum and the time."""
        self.outcomes = [0] * len(Outcome)
        self._wires: list[Wire | None] = [None] * plan.clients
        self._start_s = 0.0
        self._attempts = array("L", bytes(8 * plan.clients))
        self._failures = bytearray(plan.clients)
        self._starts = Draws(seed, f"{name}: start")
        self._retry = Retry(plan.retry, seed, name)

    def begin(self, start_s: float) -> None:
        """Schedule the first attempt of each client; the plan's times count from `start_s`."""
        self._start_s = start_s
        plan, draw = self.plan, self._starts.uniform
        for client in range(plan.clients):
            arrives_s = plan.start_s + plan.start_over_s * draw(client)
            self._attempt_at(start_s + arrives_s, client)

    def come(self, at_most_s: float) -> None:
        """Let all clients come, each at its time, until each is connected or has given up."""
        self.begin(self.load.now_s)
        what = f"{self.plan.clients} CONNECTs of {self.name}"
        self.load.run(lambda: self.is_decided, at_most_s, what)

    @property
    def is_decided(self) -> bool:
        """True if each client is connected or has given up."""
        return self.first_connected_count + self.given_up_count >= self.plan.clients

    def connected(self) -> list[Wire]:
        """Return the connections of all clients. Raises CalibrationError if one is missing."""
        wires = [wire for wire in self._wires if wire is not None]
        if len(wires) < self.plan.clients:
            missing = self.plan.clients - len(wires)
            raise CalibrationError(f"{missing} of {self.plan.clients} clients are not connected")
        return wires

    def close(self) -> None:
        for wire in self._wires:
            if wire is not None:
                wire.close()
        self._wires = [None] * self.plan.clients

    # --- attempts ----------------------------------------------------------------------------

    def connect_packet(self, client: int) -> Connect:
        durable = self.plan.durable
        properties = Properties(session_expiry_interval=SESSION_EXPIRY_S)
        return Connect(
            f"{self.name}-{client}",
            clean_start=not durable,
            keep_alive_s=round(self.plan.keep_alive_s),
            properties=properties if durable else NO_PROPERTIES,
        )

    def _attempt_at(self, at_s: float, client: int) -> None:
        self.load.loop.call_at(at_s, partial(self._attempt, client))

    def _attempt(self, client: int, now_s: float) -> None:
        number = self._attempts[client]
        self._attempts[client] = number + 1
        call = _Call(self, client, number, now_s)
        self.load.loop.call_at(now_s + self.plan.timeout_s, call.time_out)

    def accepted(self, call: _Call, now_s: float, connack: Connack) -> None:
        client = call.client
        call.is_over = True
        self._wires[client] = call.wire
        self.outcomes[Outcome.CONNECTED] += 1
        self._failures[client] = 0
        self.first_connected_s[client] = now_s - self._start_s
        self.first_connected_count += 1
        if self.on_connected is not None:
            assert call.wire is not None
            receive_maximum = connack.properties.receive_maximum or RECEIVE_MAXIMUM
            self.on_connected(client, call.wire, receive_maximum, now_s)

    def failed(self, call: _Call, now_s: float, outcome: Outcome, hint_s: float | None) -> None:
        """An attempt has failed; the next one follows, unless the client gives up."""
        call.is_over = True
        if call.wire is not None:
            call.wire.close()
        client = call.client
        self.outcomes[outcome] += 1
        failures = self._failures[client] = min(255, self._failures[client] + 1)
        delay_s = self._retry.delay_s(client, failures, call.number, hint_s)
        if delay_s is None:
            self.given_up_count += 1
        else:
            self._attempt_at(now_s + delay_s, client)


def _hint_s(connack: Connack) -> float | None:
    """Return the retry-after hint of a rejection in seconds, or None if it has none."""
    said = dict(connack.properties.user_properties)
    return int(said["retry-after-ms"]) / 1_000.0 if "retry-after-ms" in said else None
