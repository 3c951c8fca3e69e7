"""`python -m tests.torture.groups`: one of two brokers of a group is killed, again and again.

Both have members of one shared subscription, with QoS 1 and with QoS 2, and clients publish to both
all the time. What was acknowledged to a publisher has to come to a member; what came twice is
counted (docs/operate/kafka.md, "Shared subscriptions of several brokers", says when that may be).
"""

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Annotated, Final

import typer

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel, Suback, Subscribe
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.interop.broker import Broker
from tests.support.caller import Caller
from tests.support.group_brokers import broker_of
from tests.support.kafka import Kafka, kafka
from tests.support.reaper import reap_at_the_end

FILTER: Final = "$share/g/t/#"
NAMES: Final = ("a", "b")
PUBLISHERS: Final = 3
"""On each broker."""
BURST: Final = 10
"""Messages of a publisher that are not acknowledged, at most."""
PACE_S: Final = 0.05
DOWN_S: Final = 2.0
"""Maximum time for which a killed broker is down; others get its partitions after ten seconds."""
UP_S: Final = 12.0
LONG_DOWN: Final = 4
"""Every fourth time it is down until others have its partitions."""
LONG_DOWN_S: Final = 14.0
IDLE_S: Final = 90.0
"""Silence after which missing messages count as lost: longer than any wait for partitions."""
LASTING: Final = Properties(session_expiry_interval=100_000)


@dataclass
class Ledger:
    """Acknowledged and received messages, by payload."""

    acknowledged: set[bytes] = field(default_factory=set)
    got: dict[int, Counter[bytes]] = field(default_factory=lambda: {1: Counter(), 2: Counter()})
    """By the QoS with which it came."""
    kills: int = 0

    @property
    def come(self) -> set[bytes]:
        return {*self.got[1], *self.got[2]}

    @property
    def lost(self) -> set[bytes]:
        return self.acknowledged - self.come

    def again(self, qos: int) -> int:
        """Deliveries with this QoS of what a member had before; of what came with both, once more
        with QoS 1."""
        if qos == 2:
            return self.got[2].total() - len(self.got[2])
        return self.got[1].total() - len(self.got[1]) + len(self.got[1].keys() & self.got[2].keys())

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {len(self.acknowledged):,} messages acknowledged: "
            f"{len(self.lost)} lost; came again: {self.again(1)} of QoS 1, {self.again(2)} of QoS 2"
        )


class GroupTorture:
    """Two brokers on an existing Kafka."""

    def __init__(
        self,
        folder: Path,
        server: Kafka,
        prefix: str,
        *,
        kills: int,
        seed: int,
        on_kill: Callable[[Ledger], None] = lambda _: None,
    ) -> None:
        self._folder, self._server, self._prefix = folder, server, prefix
        self._kills, self._on_kill = kills, on_kill
        self._random = Random(seed)
        self._brokers: dict[str, Broker] = {}
        self._stacks = {name: ExitStack() for name in NAMES}
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._stops, self._ends = threading.Event(), threading.Event()
        """Publishing stops; all tasks end."""
        self._members = 0
        self._joined = threading.Condition(self._lock)

    def run(self) -> Ledger:
        publishers = [
            threading.Thread(target=self._publish, args=(name, index), daemon=True)
            for name in NAMES
            for index in range(PUBLISHERS)
        ]
        members = [
            threading.Thread(target=self._consume, args=(name, qos), daemon=True)
            for name in NAMES
            for qos in (1, 2)
        ]
        try:
            for name in NAMES:
                self._start(name)
            for thread in members:
                thread.start()
            with self._joined:
                assert self._joined.wait_for(lambda: self._members == len(members), IDLE_S)
            for thread in publishers:
                thread.start()
            for number in range(1, self._kills + 1):
                time.sleep(self._random.uniform(1.0, UP_S))
                self._kill(self._random.choice(NAMES), is_long=number % LONG_DOWN == 0)
            self._stops.set()
            for thread in publishers:
                thread.join()
            self._wait_for_the_rest()
        finally:
            self._stops.set()
            self._ends.set()
            for broker in self._brokers.values():
                broker.process.kill()
                broker.process.wait()
            for stack in self._stacks.values():
                stack.close()
            for thread in members:
                thread.join()
        return self._ledger

    def _start(self, name: str) -> None:
        stack = self._stacks[name]
        context = broker_of(self._folder, self._server, self._prefix, name, -SIGKILL)
        self._brokers[name] = stack.enter_context(context)

    def _kill(self, name: str, *, is_long: bool) -> None:
        process = self._brokers.pop(name).process
        process.kill()
        process.wait()
        self._stacks[name].close()
        with self._lock:
            self._ledger.kills += 1
        time.sleep(LONG_DOWN_S if is_long else self._random.uniform(0.0, DOWN_S))
        self._start(name)
        with self._lock:
            self._on_kill(self._ledger)

    def _wait_for_the_rest(self) -> None:
        """Until all has come, or nothing does any more."""
        left = len(self._ledger.acknowledged)
        since_s = time.monotonic()
        while True:
            with self._lock:
                now_left = len(self._ledger.lost)
            if now_left < left:
                left, since_s = now_left, time.monotonic()
            if not left or time.monotonic() - since_s > IDLE_S:
                return
            time.sleep(0.2)

    # --- clients -----------------------------------------------------------------------------

    def _connect(self, name: str, client_id: str, *, lasts: bool) -> Caller | None:
        """Return a client of a broker, or None if the broker is down."""
        broker = self._brokers.get(name)
        if broker is None:
            return None
        caller = None
        try:
            words = {"clean_start": False, "properties": LASTING} if lasts else {}
            caller = Caller(broker, client_id=client_id, **words)
            if caller.read() is not None:  # The CONNACK.
                return caller
        except OSError:
            pass
        if caller is not None:
            caller.close()
        return None

    def _publish(self, name: str, index: int) -> None:
        numbers = count(1)
        while not self._stops.is_set():
            caller = self._connect(name, f"p-{name}-{index}", lasts=False)
            if caller is None:
                time.sleep(PACE_S)
                continue
            with suppress(OSError), caller:
                while not self._stops.is_set():
                    payloads = [
                        b"%s %d %d" % (name.encode(), index, n) for n in islice(numbers, BURST)
                    ]
                    if not self._publish_burst(caller, f"t/{name}/{index}", payloads):
                        break
                    time.sleep(PACE_S)

    def _publish_burst(self, caller: Caller, topic: str, payloads: list[bytes]) -> bool:
        """Whether all of them were acknowledged; QoS 1 and 2 in turn."""
        sent = dict(enumerate(payloads, 1))
        for packet_id, payload in sent.items():
            caller.send(Publish(topic, payload, 1 + packet_id % 2, packet_id=packet_id))
        while sent:
            packet = caller.read()
            if packet is None:
                return False
            if isinstance(packet, Pubrec):
                caller.send(Pubrel(packet.packet_id))
            if isinstance(packet, (Puback, Pubrec)):
                with self._lock:
                    self._ledger.acknowledged.add(sent[packet.packet_id])
            if isinstance(packet, (Puback, Pubcomp)):
                del sent[packet.packet_id]
        return True

    def _consume(self, name: str, qos: int) -> None:
        received: set[int] = set()
        """Packet identifiers of QoS 2 that are not released."""
        is_known = False
        while not self._ends.is_set():
            caller = self._connect(name, f"app-{name}-{qos}", lasts=True)
            if caller is None:
                time.sleep(PACE_S)
                continue
            with suppress(OSError), caller:
                if not is_known:
                    caller.send(Subscribe(1, ((FILTER, SubscriptionOptions(qos)),)))
                while (packet := caller.read()) is not None:
                    if isinstance(packet, Suback):
                        is_known = True
                        with self._joined:
                            self._members += 1
                            self._joined.notify()
                    elif isinstance(packet, Pubrel):
                        received.discard(packet.packet_id)
                        caller.send(Pubcomp(packet.packet_id))
                    elif isinstance(packet, Publish):
                        if packet.qos == 2 and packet.packet_id in received:
                            caller.send(Pubrec(packet.packet_id))
                            continue
                        with self._lock:
                            self._ledger.got[packet.qos][packet.payload] += 1
                        if packet.qos == 2:
                            received.add(packet.packet_id)
                        answer = Pubrec if packet.qos == 2 else Puback
                        caller.send(answer(packet.packet_id))


def show(ledger: Ledger) -> None:
    print(
        f"{ledger.kills} kills, {len(ledger.acknowledged):,} acknowledged, "
        f"{len(ledger.lost):,} of them not come yet",
        flush=True,
    )


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often one of the two is killed.")] = 20,
    seed: Annotated[int, typer.Option(help="Which, and when.")] = 1,
) -> None:
    """Exit code 1: something that was acknowledged has not come."""
    reap_at_the_end()
    with tempfile.TemporaryDirectory(prefix="torture-groups-") as name:
        folder = Path(name)
        with kafka(folder / "kafka") as server:
            torture = GroupTorture(folder, server, "groups", kills=kills, seed=seed, on_kill=show)
            ledger = torture.run()
    print(ledger)
    for each in sorted(ledger.lost)[:20]:
        print(f"lost: {each!r}")
    sys.exit(bool(ledger.lost))


if __name__ == "__main__":
    typer.run(main)
