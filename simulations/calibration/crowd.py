"""Crowd: real clients that connect as a simulated population does.

Arrivals and jitter come from the same draws as in `simulations.clients`: client 7 of a population
comes at the same instant and waits equally long before its third attempt, here and there.
"""

import errno
from array import array
from functools import partial
from socket import socket
from typing import Final, final

from flowguard.codec import Connack, Connect, PacketDecoder, encode
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties
from simulations.calibration.process import CalibrationError
from simulations.calibration.wires import READ_BYTES, WRITE, Wires
from simulations.clients import NEVER_S
from simulations.connection import Outcome
from simulations.draws import Draws
from simulations.retry import Retry
from simulations.scenario import PopulationPlan

SESSION_EXPIRY_S: Final = 3_600
CONNACK_BYTE: Final = 0x20
PACKET_BYTES_MAX: Final = 64 * 1024


@final
class _Call:
    """One attempt."""

    __slots__ = ("client", "crowd", "is_said", "number", "sock")

    def __init__(self, crowd: "RealCrowd", client: int, number: int, sock: socket) -> None:
        self.crowd = crowd
        self.client = client
        self.number = number
        self.sock = sock
        self.is_said = False
        """Whether its CONNECT is sent."""

    def ready(self, now_s: float) -> None:
        self.crowd.ready(self, now_s)


@final
class RealCrowd:
    """One population; `start` it, then let its wires run."""

    def __init__(self, wires: Wires, name: str, plan: PopulationPlan, seed: int) -> None:
        self.name = name
        self.plan = plan
        self.first_connected_s = array("d", [NEVER_S]) * plan.clients
        """Time from the start to each client's first CONNACK."""
        self.first_connected_count = 0
        self.given_up_count = 0
        self.outcomes = [0] * len(Outcome)
        """Attempts by how they ended."""
        self.socks: list[socket | None] = [None] * plan.clients
        """Sockets of the clients that are connected."""
        self._wires = wires
        self._start_s = 0.0
        self._attempts = array("L", bytes(8 * plan.clients))
        self._failures = bytearray(plan.clients)
        self._starts = Draws(seed, f"{name}: start")
        self._retry = Retry(plan.retry, seed, name)
        properties = Properties(session_expiry_interval=SESSION_EXPIRY_S)
        self._connect = partial(
            Connect,
            clean_start=not plan.durable,
            keep_alive_s=round(plan.keep_alive_s),
            properties=properties if plan.durable else NO_PROPERTIES,
        )

    def start(self, now_s: float) -> None:
        """Let all clients come, each at its time after `now_s`."""
        self._start_s = now_s
        plan, draw = self.plan, self._starts.uniform
        for client in range(plan.clients):
            arrives_s = plan.start_s + plan.start_over_s * draw(client)
            self._wires.at(now_s + arrives_s, self._attempt, client)

    @property
    def is_settled(self) -> bool:
        """Whether every client is connected, or has given up."""
        return self.first_connected_count + self.given_up_count >= self.plan.clients

    def connected(self) -> list[socket]:
        """The sockets of all clients; raises CalibrationError where one is missing."""
        socks = [sock for sock in self.socks if sock is not None]
        if len(socks) < self.plan.clients:
            missing = self.plan.clients - len(socks)
            raise CalibrationError(f"{missing} of {self.plan.clients} clients are not connected")
        return socks

    def close(self) -> None:
        """Close all connections."""
        for client, sock in enumerate(self.socks):
            if sock is not None:
                self._wires.close(sock)
                self.socks[client] = None

    # --- attempts ----------------------------------------------------------------------------

    def _attempt(self, client: int, now_s: float) -> None:
        number = self._attempts[client]
        self._attempts[client] = number + 1
        sock, error = self._wires.dial()
        call = _Call(self, client, number, sock)
        if error not in (0, errno.EINPROGRESS):
            self._fail(call, now_s, Outcome.UNREACHABLE, None)
            return
        self._wires.at(now_s + self.plan.timeout_s, self._time_out, call)
        # On loopback the handshake is over when the call returns, unless the backlog is full.
        self._say(call, now_s)

    def _say(self, call: _Call, now_s: float) -> None:
        frame = encode(self._connect(f"{self.name}-{call.client}"), MQTT_5)
        try:
            call.sock.send(frame)
        except BlockingIOError:
            self._wires.watch(call.sock, call, WRITE)
            return
        except OSError:
            self._fail(call, now_s, Outcome.UNREACHABLE, None)
            return
        call.is_said = True
        self._wires.watch(call.sock, call)

    def ready(self, call: _Call, now_s: float) -> None:
        """Handle what its socket has."""
        if not call.is_said:
            self._say(call, now_s)
            return
        try:
            data = call.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._fail(call, now_s, Outcome.CLOSED, None)
        elif data[0] == CONNACK_BYTE and data[1] < 0x80 and not data[3]:
            self._accepted(call, now_s)
        else:
            self._fail(call, now_s, Outcome.REFUSED, _hint_s(data))

    def _accepted(self, call: _Call, now_s: float) -> None:
        client = call.client
        self.socks[client] = call.sock
        self.outcomes[Outcome.CONNECTED] += 1
        self._failures[client] = 0
        self.first_connected_s[client] = now_s - self._start_s
        self.first_connected_count += 1
        self._wires.watch(call.sock, _Silent(call.sock))

    def _time_out(self, call: _Call, now_s: float) -> None:
        if self.socks[call.client] is not call.sock and call.sock.fileno() >= 0:
            self._fail(call, now_s, Outcome.TIMED_OUT, None)

    def _fail(self, call: _Call, now_s: float, outcome: Outcome, hint_s: float | None) -> None:
        self._wires.close(call.sock)
        client = call.client
        self.outcomes[outcome] += 1
        failures = self._failures[client] = min(255, self._failures[client] + 1)
        delay_s = self._retry.delay_s(client, failures, call.number, hint_s)
        if delay_s is None:
            self.given_up_count += 1
        else:
            self._wires.at(now_s + delay_s, self._attempt, client)


@final
class _Silent:
    """A connected client that has nothing to do, and nothing to hear."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock

    def ready(self, now_s: float) -> None:
        data = self._sock.recv(READ_BYTES)
        raise CalibrationError(f"the broker said something unexpected: {data[:32]!r}")


def _hint_s(data: bytes) -> float | None:
    """The time after which a refusal asks to come back; None: it does not say."""
    decoder = PacketDecoder(PACKET_BYTES_MAX, MQTT_5, "client")
    decoder.feed(data)
    packet = decoder.next()
    if not isinstance(packet, Connack):
        raise CalibrationError(f"no CONNACK: {data[:32]!r}")
    for key, value in packet.properties.user_properties:
        if key == "retry-after-ms":
            return int(value) / 1_000.0
    return None
