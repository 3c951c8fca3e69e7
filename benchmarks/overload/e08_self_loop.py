"""E8: clients that publish to their own subscription, one message at a time, under the highest
pressure: nobody may wait for itself.

Invariant 6 of the design. Each client announces Receive Maximum 1 and is granted 1; its session is
durable, so every message takes its place in the window (1 under that pressure) and in the store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import trio

from benchmarks.checks import Check, Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from flowguard import codec
from flowguard.types import MQTT_5, Properties, Publish, SubscriptionOptions
from loadgen.storm import Target
from loadgen.storm.loop import ClientLoop, Fate, Wire

from .subject import Subject

KEY = "overload-e8"
CLIENTS: Final = 500
SETTINGS = {"FLOWGUARD_SESSION__RECEIVE_MAXIMUM": "1"}
PRESSED_S = 30.0
PROGRESS_S: Final = 5.0
"""The longest that anybody waits for its turn."""
PATIENCE_S = 300.0
"""Until all are there, or have finished: only who has lost something takes longer."""
SESSION_EXPIRY_S = 300


@final
class Looper:
    """One client: its next message follows when the last one is acknowledged."""

    def __init__(self, loop: ClientLoop, number: int, qos: int) -> None:
        self._loop = loop
        self._topic = f"self/{number}"
        self._client_id = f"self-{number}"
        self.qos = qos
        self.publishing = False
        self.subscribed = False
        self.sent = self.acknowledged = self.arrived = 0
        self.disordered = 0
        self.lost = False
        self.progress_s = 0.0
        self.stall_s = 0.0
        """The longest time from one step of the exchange to the next."""
        self.wire: Wire | None = None

    def dial(self, now_s: float) -> None:
        self.wire = self._loop.dial(self, now_s)

    def opened(self, now_s: float) -> None:
        properties = Properties(session_expiry_interval=SESSION_EXPIRY_S, receive_maximum=1)
        self._write(codec.encode(codec.Connect(self._client_id, properties=properties), MQTT_5))

    def start(self, now_s: float) -> None:
        self.publishing = True
        self.progress_s = now_s
        self._publish()

    def stop(self, now_s: float) -> None:
        """Publish no more; what is under way goes on, and what it lacks by now counts."""
        self.publishing = False
        self._note(now_s)

    @property
    def done(self) -> bool:
        return self.acknowledged == self.arrived == self.sent

    def receive(self, packet: codec.Packet, now_s: float) -> None:
        if packet.__class__ is Publish:
            self._arrive(packet)
        elif packet.__class__ is codec.Pubrec:
            self._write(codec.pubrel_frame(packet.packet_id))
        elif packet.__class__ is codec.Pubrel:
            self._write(codec.pubcomp_frame(packet.packet_id))
        elif packet.__class__ is codec.Puback or packet.__class__ is codec.Pubcomp:
            self.acknowledged += 1
            if self.publishing:
                self._publish()
        elif packet.__class__ is codec.Suback:
            self.subscribed = True
        elif packet.__class__ is codec.Connack:
            options = SubscriptionOptions(self.qos)
            self._write(codec.encode(codec.Subscribe(1, ((self._topic, options),)), MQTT_5))
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        if self.progress_s:
            self.stall_s = max(self.stall_s, now_s - self.progress_s)
            self.progress_s = now_s

    def _arrive(self, packet: Publish) -> None:
        if int(packet.payload) != self.arrived:
            self.disordered += 1
        self.arrived += 1
        frame = codec.puback_frame if packet.qos == 1 else codec.pubrec_frame
        self._write(frame(packet.packet_id))

    def _publish(self) -> None:
        packet_id = self.sent % 65_535 + 1
        message = Publish(self._topic, b"%d" % self.sent, self.qos, packet_id=packet_id)
        self._write(codec.encode(message, MQTT_5))
        self.sent += 1

    def _write(self, data: bytes) -> None:
        assert self.wire is not None
        self.wire.write(data)

    def closed(self, fate: Fate, now_s: float) -> None:
        self.lost = True


@dataclass(frozen=True)
class SelfLoop:
    seconds: float
    clients: int
    messages: int
    stall_s: float
    """The longest wait of any client between two steps."""
    least: int
    """Messages of the client that got the fewest through."""
    disordered: int
    unfinished: int
    """Clients whose last message never came back."""
    lost: int
    pressure: float
    window: float

    def report(self) -> Report:
        return Report(
            KEY,
            "E8: publishers that are their own subscribers, Receive Maximum 1, pressure 16",
            f"Asked for: 500 clients, QoS 1 and 2, pressure forced to 16. Done as asked, for "
            f"{self.seconds:g} s: {self.clients} clients, half of them with each QoS.",
            (
                at_most("longest wait", self.stall_s, PROGRESS_S, " s", 2),
                none_of("out of order", self.disordered),
                none_of("clients that never finished", self.unfinished),
                none_of("connections lost", self.lost),
                Check(
                    "the test bites: pressure held, window at its floor",
                    f"{self.pressure:g}, window {self.window:g}",
                    "16, ≤ 1",
                    self.pressure >= 16 and self.window <= 1,
                ),
            ),
            (Grid.of(COLUMNS, (self,)),),
        )


COLUMNS: Columns[SelfLoop] = {
    "messages /s": lambda result: f"{result.messages / result.seconds:,.0f}",
    "fewest of one client": lambda result: f"{result.least:,}",
    "longest wait s": lambda result: f"{result.stall_s:.2f}",
}


def measure(conditions: Conditions) -> SelfLoop:
    seconds = conditions.scaled(PRESSED_S, 3.0)
    subject = Subject("flowguard", settings=SETTINGS)
    with subject.started(conditions.broker_core) as broker:
        target = Target.resolve("127.0.0.1", broker.port)
        loopers = trio.run(run, target, CLIENTS, seconds, broker.press)
        rows = broker.rows()
    pressed = rows[-max(1, int(seconds) - 2) :]
    return SelfLoop(
        seconds,
        len(loopers),
        sum(each.acknowledged for each in loopers),
        max(each.stall_s for each in loopers),
        min(each.acknowledged for each in loopers),
        sum(each.disordered for each in loopers),
        sum(not each.done for each in loopers),
        sum(each.lost for each in loopers),
        min((row["pressure"] for row in pressed), default=0.0),
        max((row["window"] for row in pressed), default=0.0),
    )


async def run(
    target: Target, clients: int, seconds: float, press: Callable[[], None]
) -> list[Looper]:
    """Connect, subscribe, press, publish, and let what is under way finish."""
    loop = ClientLoop(target, trio.current_time)
    loopers = [Looper(loop, number, 1 + number % 2) for number in range(clients)]
    try:
        for looper in loopers:
            loop.call_at(0.0, looper.dial)
        until_s = loop.clock() + PATIENCE_S
        await loop.run(lambda now_s: now_s >= until_s or all(each.subscribed for each in loopers))
        press()
        for looper in loopers:
            loop.call_at(0.0, looper.start)
        until_s = loop.clock() + seconds
        await loop.run(lambda now_s: now_s >= until_s)
        for looper in loopers:
            looper.stop(loop.clock())
        until_s = loop.clock() + PATIENCE_S
        await loop.run(lambda now_s: now_s >= until_s or all(each.done for each in loopers))
    finally:
        loop.close_all()
    return loopers
