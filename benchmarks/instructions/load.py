"""The loads whose instructions are counted: clients and broker in one process, in virtual time.

    python -m benchmarks.instructions.load ROW LIBRARY    # under callgrind, nothing collected yet

The broker's part is all that `flowguard serve` runs for its clients but trio and the kernel:
conversations, node, turns and reactor with real sockets, and the store where there is one. Neither
clock nor tick, no other task and no thread of ours: the same instructions each time. What the
clients do is not collected, and begins when the broker has nothing left to do. Prints how many
messages were counted.
"""

import gc
import random
import sys
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from socket import socket, socketpair
from tempfile import TemporaryDirectory
from typing import Final

from flowguard import build
from flowguard.__main__ import GC_THRESHOLDS
from flowguard.bounds import Bounds
from flowguard.broker.sockets.reactor import Reactor
from flowguard.codec.encoder import puback_frame
from flowguard.config import MIB, Settings, StoreSettings
from flowguard.node.loop.turns import Next
from flowguard.node.node import Node, Surroundings
from flowguard.stores import Store
from flowguard.stores.memory import MemoryStore
from flowguard.stores.rocks.store import RocksStore

MEMORY_BYTES: Final = 1024 * MIB
TOPIC_BYTES, PAYLOAD_BYTES = 8, 16
READ_BYTES: Final = 1 << 20
BESIDE: Final = 99_999
"""The number of a durable publisher beside others."""
WARM_UP: Final = 5
"""Rounds that are not counted: plans are made, tables grow."""


@dataclass(frozen=True)
class Row:
    """So many publishers, each with so many subscribers of its own, in rounds."""

    title: str
    publishers: int
    subscribers: int
    """Of each publisher."""
    qos: int
    outstanding: int
    """Messages of each publisher in a round."""
    rounds: int
    topics: int = 1
    """Each message of a publisher is for another of them."""
    durable: bool = False
    beside: bool = False
    """One more pair is durable, and has a message in each round before all others'."""
    one_by_one: bool = False
    """Acknowledgements of subscribers wake the broker by themselves, not with the next round."""

    @property
    def messages(self) -> int:
        """Delivered, of those that count."""
        return self.publishers * self.subscribers * self.outstanding * self.rounds


ROWS: Final = {
    "alone": Row("QoS 1, one message per wake-up", 1, 1, 1, 1, 400, one_by_one=True),
    "w1": Row("QoS 1, 100 pairs, 1 outstanding", 100, 1, 1, 1, 20),
    "w10": Row("QoS 1, 100 pairs, 10 outstanding", 100, 1, 1, 10, 8),
    "w10-beside": Row("QoS 1, 10 outstanding, beside 0.1 % durable", 100, 1, 1, 10, 8, beside=True),
    "w10-topics": Row("QoS 1, 10 outstanding, 50 topics in turn", 100, 1, 1, 10, 8, topics=50),
    "qos0": Row("QoS 0, 100 pairs, 10 at a time", 100, 1, 0, 10, 8),
    "qos0-topics": Row("QoS 0, 10 at a time, 50 topics in turn", 100, 1, 0, 10, 8, topics=50),
    "fanout-qos0": Row("fan-out 1 → 1000, QoS 0, 10 at a time", 1, 1000, 0, 10, 3),
    "fanout-qos1": Row("fan-out 1 → 1000, QoS 1, 10 outstanding", 1, 1000, 1, 10, 3),
    "durable": Row("durable sessions, QoS 1, 100 pairs, 10 outstanding", 100, 1, 1, 10, 8,
                   durable=True),
}  # fmt: skip


def topic(publisher: int, number: int) -> bytes:
    return b"%05d/%02d" % (publisher, number)


def publish_frame(row: Row, publisher: int, number: int) -> bytes:
    name = topic(publisher, number % row.topics)
    packet_id = (number % 60_000 + 1).to_bytes(2, "big") if row.qos else b""
    body = len(name).to_bytes(2, "big") + name + packet_id + b"x" * PAYLOAD_BYTES
    return bytes([0x30 | row.qos << 1, len(body)]) + body


def answers_to(row: Row, data: bytes) -> bytes:
    """The PUBACKs for all the PUBLISHes that a subscriber has read."""
    if not row.qos:
        return b""
    size = 2 + 2 + TOPIC_BYTES + 2 + PAYLOAD_BYTES
    assert len(data) % size == 0
    starts = range(4 + TOPIC_BYTES, len(data), size)
    return b"".join(puback_frame(data[at] << 8 | data[at + 1]) for at in starts)


class Broker:
    """One without tasks: `serve` does all that there is to do, and returns."""

    def __init__(self, store: Store) -> None:
        self.now_s = 1_700_000_000.0
        clock = lambda: self.now_s  # noqa: E731  what the real one is
        draws = random.Random(1)
        bounds = Bounds.of(Settings(), MEMORY_BYTES)
        self._node = Node(
            bounds,
            self.now_s,
            Surroundings(lambda: "r", draws.random, lambda: 0.0),
        )
        self._store = store
        self._reactor = Reactor(self._node, store, clock, lambda: True)
        self._node.recover(store, self.now_s)

    def connect(self, client_id: bytes, *, durable: bool, subscribe: bytes, qos: int) -> socket:
        """A client that has its CONNACK, and its SUBACK if it subscribes to anything."""
        ours, theirs = socketpair()
        theirs.setblocking(False)
        self._reactor.adopt(ours)
        body = b"\0\4MQTT\4" + (b"\0" if durable else b"\2") + b"\0\0"
        body += len(client_id).to_bytes(2, "big") + client_id
        theirs.send(bytes([0x10, len(body)]) + body)
        self.serve()
        assert theirs.recv(READ_BYTES)[3] == 0
        if subscribe:
            body = b"\0\1" + len(subscribe).to_bytes(2, "big") + subscribe + bytes([qos])
            theirs.send(bytes([0x82, len(body)]) + body)
            self.serve()
            assert theirs.recv(READ_BYTES)[4] == qos
        return theirs

    def serve(self) -> None:
        turns, journal = self._reactor.turns, self._node.journal
        self.now_s += 0.001
        turns.resume()
        while True:
            following = turns.go_on()
            if following is Next.TURN:
                continue
            if following is Next.IDLE:
                batch = journal.take(self.now_s)
                if batch is None:
                    return
                self._store.commit(batch.ops)
                journal.durable(batch, self.now_s, 0.0)
                turns.end_slice(self.now_s)
                turns.awaited = False
            turns.resume()


class Load:
    def __init__(self, row: Row, broker: Broker, counting: Callable[[], None]) -> None:
        self._row = row
        self._broker = broker
        self._counting = counting
        self._number = 0
        durable, qos = row.durable, row.qos
        self._publishers = [
            broker.connect(b"p%d" % at, durable=durable, subscribe=b"", qos=0)
            for at in range(row.publishers)
        ]
        self._beside: list[socket] = []
        if row.beside:
            self._beside = [
                broker.connect(b"durable-p", durable=True, subscribe=b"", qos=0),
                broker.connect(b"durable-s", durable=True, subscribe=topic(BESIDE, 0), qos=qos),
            ]
        self._subscribers = [
            broker.connect(
                b"s%d-%d" % (at, index),
                durable=durable,
                subscribe=topic(at, 0) if row.topics == 1 else b"%05d/+" % at,
                qos=qos,
            )
            for at in range(row.publishers)
            for index in range(row.subscribers)
        ]

    def round(self) -> None:
        row = self._row
        numbers = range(self._number, self._number + row.outstanding)
        self._number += row.outstanding
        if row.beside:
            self._beside[0].send(publish_frame(row, BESIDE, 0))
        for at, client in enumerate(self._publishers):
            client.send(b"".join(publish_frame(row, at, number) for number in numbers))
        self._serve()
        if row.beside:
            assert len(self._beside[0].recv(READ_BYTES)) == len(puback_frame(1))
            self._beside[1].send(answers_to(row, self._beside[1].recv(READ_BYTES)))
        for client in self._publishers if row.qos else ():
            assert len(client.recv(READ_BYTES)) == 4 * row.outstanding
        for client in self._subscribers:
            data = client.recv(READ_BYTES)
            assert data.count(b"x" * PAYLOAD_BYTES) == row.outstanding
            if row.qos:
                client.send(answers_to(row, data))
        if row.one_by_one:
            self._serve()

    def _serve(self) -> None:
        self._counting()
        self._broker.serve()
        self._counting()


def main(name: str, library: str) -> None:
    row, collect = ROWS[name], CDLL(library)
    assert build.name() == "compiled"
    gc.set_threshold(*GC_THRESHOLDS)
    with TemporaryDirectory(prefix="flowguard-bench-") as folder:
        store: Store = MemoryStore()
        if row.durable or row.beside:
            settings = StoreSettings(durability="os")
            now_s = lambda: 1_700_000_000.0  # noqa: E731
            store = RocksStore(Path(folder), settings, wall_s=now_s, random_node=lambda: 7)
        load = Load(row, Broker(store), collect.counting)
        for _ in range(WARM_UP):
            load.round()
        collect.counting_begins()
        for _ in range(row.rounds):
            load.round()
        print(row.messages, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
