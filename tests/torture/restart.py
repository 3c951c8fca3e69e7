"""How long a killed broker takes to be back when much is queued (the objective: 10^5 in 1 s)."""

import os
import selectors
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flowguard.config import Settings
from flowguard.records import NEVER_S, Append, Delivery, PutSession, StoreOp
from flowguard.types import MQTT_5, SESSION_NEVER_EXPIRES, Publish
from tests.support.patience import HANG_S
from tests.support.peer import Peer, Presence
from tests.torture.cast import SETTINGS
from tests.torture.process import CONTEXT, Broker, Start
from tests.torture.stores import STORES
from tests.torture.wire import Line, reserve_port

RESTART_OBJECTIVE_S = 1.0
BACKLOGS = ((1, 100_000), (10, 10_000), (1_000, 100))
"""Sessions, and messages queued for each."""
BATCH_OPS = 1_000
PAYLOAD_BYTES = 100
TOPIC = "t/backlog"


@dataclass(frozen=True)
class Restart:
    """Seconds from the start of the process; `cold`: it had to import everything first."""

    sessions: int
    messages: int
    cold: bool
    cpu_s: float
    """Processor time until it serves."""
    serving_s: float
    connected_s: float
    """A client with a backlog has its CONNACK."""
    delivered_s: float
    """It has the first message."""

    def __str__(self) -> str:
        return (
            f"{'cold' if self.cold else 'forked'} restart with {self.sessions} x {self.messages} "
            f"queued messages: serving after {self.serving_s * 1e3:.0f} ms "
            f"({self.cpu_s * 1e3:.0f} ms CPU), CONNACK after {self.connected_s * 1e3:.0f} ms, "
            f"first message after {self.delivered_s * 1e3:.0f} ms"
        )


def measure(
    folder: Path, sessions: int, messages: int, store: str = "rocks", *, cold: bool = False
) -> Restart:
    """Fill a store, kill who filled it, start a broker on it, and let one client come back.

    It must get all its messages in order; the broker is killed again, whatever it was about to do.
    """
    reserved = reserve_port()
    start = Start(reserved.getsockname()[1], folder, store, SETTINGS | {"store": {}})
    _fill(start, sessions, messages)
    selector = selectors.DefaultSelector()
    line = Line(start.port, selector)
    came: list[int] = []
    peer = Peer(line, _client_id(sessions - 1), MQTT_5, presence=Presence.PRESENT)
    peer.on_delivered = lambda peer, publish: came.append(int(publish.payload.rstrip(b".")))
    broker = Broker(start, cold=cold)
    connected_s = delivered_s = 0.0
    try:
        while len(came) < messages:
            assert broker.is_alive
            assert time.monotonic() < broker.started_s + HANG_S
            for key, _ in selector.select(0.001):
                key.data.read()
            if line.wire is None:
                if line.dial():
                    peer.connect()
            else:
                peer.receive(len(line.wire.inbox))
                peer.acknowledge(everything=True)
            if line.wire is not None:
                line.wire.flush()
            if peer.online and not connected_s:
                connected_s = time.monotonic() - broker.started_s
            if came and not delivered_s:
                delivered_s = time.monotonic() - broker.started_s
        assert broker.serving_s is not None
        serving_s = broker.serving_s - broker.started_s
    finally:
        broker.kill()
        line.hang_up()
        selector.close()
        reserved.close()
    assert came == list(range(1, messages + 1))
    return Restart(sessions, messages, cold, broker.cpu_s, serving_s, connected_s, delivered_s)


def _client_id(number: int) -> str:
    return f"client-{number}"


def _fill(start: Start, sessions: int, messages: int) -> None:
    """Fill a store in a process that kills itself, so that the next start finds a crash."""
    process = CONTEXT.Process(target=_fill_and_die, args=(start, sessions, messages), daemon=True)
    process.start()
    process.join(HANG_S)
    assert process.exitcode == -signal.SIGKILL, process.exitcode


def _fill_and_die(start: Start, sessions: int, messages: int) -> None:
    settings = Settings.model_validate(start.settings)
    store = STORES[start.store](start.folder / "store", settings.store)
    ops = _ops(sessions, messages)
    while batch := list(islice(ops, BATCH_OPS)):
        store.commit(batch)
    os.kill(os.getpid(), signal.SIGKILL)


def _ops(sessions: int, messages: int) -> Iterator[StoreOp]:
    for number in range(sessions):
        yield PutSession(_client_id(number), SESSION_NEVER_EXPIRES, None)
    for pos in range(1, messages + 1):
        publish = Publish(TOPIC, b"%d".ljust(PAYLOAD_BYTES, b".") % pos, 1)
        for number in range(sessions):
            yield Append(_client_id(number), pos, Delivery(publish, 1, False, (), NEVER_S))
