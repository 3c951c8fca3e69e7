"""One MQTT client of a storm: attempts until it is connected or gives up, then its part.

WAITING --due--> TRYING --CONNACK 0--> IN --> OVER
   ^                |                   |
   +-----failed-----+---gives up--------+---lost, or the storm has ended---> OVER

In a crowd that returns, a client that is lost is WAITING again.
"""

from enum import Enum
from functools import partial
from random import Random
from typing import Protocol, final

from flowguard.codec import PINGREQ_FRAME, Connack, Connect, Disconnect, Packet, encode
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, ReasonCode
from loadgen.storm.access import NOBODY, User
from loadgen.storm.loop import ClientLoop, Fate, Wire
from loadgen.storm.plan import CrowdPlan
from loadgen.storm.tally import ConnectTally

SESSION_EXPIRY_S = 300
"""Session expiry of durable clients: a killed storm leaves no durable sessions after five
minutes."""


class Part(Protocol):
    """The part of a client once it is connected."""

    def connected(self, now_s: float) -> None:
        """The broker has accepted the client."""

    def receive(self, packet: Packet, now_s: float) -> None:
        """Take a packet from the broker, but no DISCONNECT."""


class Shared(Protocol):
    """Plan, loop and tally that all clients of a crowd share."""

    plan: CrowdPlan
    rng: Random
    loop: ClientLoop
    tally: ConnectTally


class Stage(Enum):
    WAITING = "waiting"
    TRYING = "trying"
    IN = "in"
    OVER = "over"


@final
class Client:
    """Retries after rejections. `part` is its task once it is connected, or None if it just
    stays."""

    __slots__ = (
        "_attempts",
        "_crowd",
        "_first_s",
        "_started_s",
        "_user",
        "_was_busy",
        "_was_in",
        "client_id",
        "part",
        "properties",
        "stage",
        "wire",
    )

    def __init__(self, crowd: Shared, client_id: str, user: User = NOBODY) -> None:
        self._crowd = crowd
        self._user = user
        self._attempts = 0
        self._first_s = 0.0
        self._started_s = 0.0
        self._was_busy = False
        self._was_in = False
        self.client_id = client_id
        self.part: Part | None = None
        self.properties: Properties = NO_PROPERTIES
        """The properties of the broker's CONNACK."""
        self.stage = Stage.WAITING
        self.wire: Wire | None = None

    # --- connecting --------------------------------------------------------------------------

    def attempt(self, now_s: float) -> None:
        """Dial; the results arrive through `opened`, `receive` and `closed`."""
        if self.stage is not Stage.WAITING:
            return
        tally = self._crowd.tally
        self._attempts += 1
        tally.attempts += 1
        tally.attempts_max = max(tally.attempts_max, self._attempts)
        if self._attempts == 1:
            self._first_s = now_s
        self._started_s = now_s
        self.stage = Stage.TRYING
        loop = self._crowd.loop
        self.wire = loop.dial(self, now_s)
        loop.call_at(now_s + self._crowd.plan.timeout_s, partial(self._time_out, self.wire))

    def opened(self, now_s: float) -> None:
        assert self.wire is not None
        self.wire.write(encode(self._connect_packet(), self._crowd.loop.target.version))

    def _connect_packet(self) -> Connect:
        durable = self._crowd.plan.durable
        version, password = self._crowd.loop.target.version, self._user.password
        properties = NO_PROPERTIES
        if durable and version == MQTT_5:
            properties = Properties(session_expiry_interval=SESSION_EXPIRY_S)
        return Connect(
            self.client_id,
            version,
            clean_start=not durable or (version == MQTT_5 and not self._was_in),
            keep_alive_s=self._crowd.plan.keep_alive_s,
            username=self._user.name,
            password=None if password is None else password.encode(),
            properties=properties,
        )

    def _time_out(self, wire: Wire | None, now_s: float) -> None:
        if self.stage is Stage.TRYING and self.wire is wire:
            self._crowd.tally.timeouts += 1
            self._failed(now_s)

    def _failed(self, now_s: float) -> None:
        """The attempt has failed: wait for the next one, or give up."""
        if self.wire is not None:
            self.wire.close()
        crowd = self._crowd
        delay_s = crowd.plan.retry.delay_s(self._attempts, crowd.rng)
        if delay_s is None:
            self.stage = Stage.OVER
            crowd.tally.trying -= 1
            crowd.tally.gave_up += 1
        else:
            self.stage = Stage.WAITING
            crowd.loop.call_at(now_s + delay_s, self.attempt)

    # --- what the broker says ----------------------------------------------------------------

    def receive(self, packet: Packet, now_s: float) -> None:
        if self.stage is Stage.IN:
            if packet.__class__ is Disconnect:
                self._crowd.tally.ended[packet.reason_code] += 1  # its end of stream follows
            elif self.part is not None:
                self.part.receive(packet, now_s)
        elif isinstance(packet, Connack):
            self._on_connack(packet, now_s)

    def _on_connack(self, packet: Connack, now_s: float) -> None:
        tally = self._crowd.tally
        tally.answer.record(now_s - self._started_s)
        if packet.reason_code == ReasonCode.SUCCESS:
            tally.accepted += 1
            tally.connected += 1
            tally.trying -= 1
            tally.came_back += self._was_busy
            tally.to_connected.record(now_s - self._first_s)
            tally.after_start.record(now_s - tally.started_s)
            self.properties = packet.properties
            self.stage = Stage.IN
            self._was_in = True
            if packet.properties.server_keep_alive:
                self._crowd.loop.call_at(now_s, self._ping)
            if self.part is not None:
                self.part.connected(now_s)
            return
        if self._means_busy(packet.reason_code):
            tally.busy += 1
            self._was_busy = True
        else:
            tally.refused[packet.reason_code] += 1
        self._failed(now_s)

    def _means_busy(self, reason_code: int) -> bool:
        """Return True if a rejection means "busy". 3.1.1 has only return code 3 for it, which the
        codec reads as 0x88."""
        if self._crowd.loop.target.version == MQTT_5:
            return reason_code == ReasonCode.SERVER_BUSY
        return reason_code == ReasonCode.SERVER_UNAVAILABLE

    def _ping(self, now_s: float) -> None:
        """Send a PINGREQ. The client asks for no keep-alive, but the broker may demand one."""
        if self.stage is Stage.IN:
            assert self.wire is not None
            assert self.properties.server_keep_alive
            self.wire.write(PINGREQ_FRAME)
            self._crowd.loop.call_at(now_s + self.properties.server_keep_alive / 2, self._ping)

    def closed(self, fate: Fate, now_s: float) -> None:
        tally = self._crowd.tally
        if self.stage is Stage.IN:
            self.stage = Stage.OVER
            tally.connected -= 1
            tally.lost += 1
            if self._crowd.plan.returns:
                self._attempts = 0
                tally.trying += 1
                delay_s = self._crowd.plan.retry.delay_s(1, self._crowd.rng) or 0.0
                self.stage = Stage.WAITING
                self._crowd.loop.call_at(now_s + delay_s, self.attempt)
        elif self.stage is Stage.TRYING:
            tally.fates[fate] += 1
            tally.layer_fault = self._crowd.loop.layer_fault
            self._failed(now_s)

    # --- leaving -----------------------------------------------------------------------------

    def leave(self) -> None:
        """Send DISCONNECT if the client is connected, and close."""
        wire = self.wire
        if self.stage is Stage.IN and wire is not None:
            version = self._crowd.loop.target.version
            properties = NO_PROPERTIES
            if self._crowd.plan.durable and version == MQTT_5:
                properties = Properties(session_expiry_interval=0)
            wire.write(encode(Disconnect(properties=properties), version))
        self.stage = Stage.OVER
        if wire is not None:
            wire.close()
