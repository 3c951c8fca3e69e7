"""Waiting times that the owner of a session gets, with two workers in one process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from flowguard.app.workers.seat import HANDOVER, Seat, name_of, socket_path
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.workers.handover import Handover
from flowguard.broker.workers.unix_sockets import listen_unix
from flowguard.broker.workers.worker_ports import WorkerPorts
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect
from flowguard.config import Settings
from flowguard.node.connect.attempts import CONNECTED
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5
from tests.flowguard.workers.clients import WORKERS, names

WAIT_S = 0.5
"""Time that the connection waits, far above that between two readings of a clock."""
NAMES = [name_of(index) for index in range(WORKERS)]


class InProcessWorker:
    def __init__(self, index: int, data: Path) -> None:
        self.members = Seat(index, WORKERS, 1, data).members()
        self.paths = {name: socket_path(data, each, HANDOVER) for each, name in enumerate(NAMES)}
        self.doorways = [Doorway(listen("127.0.0.1", 0))]
        self.running: Running
        self.handover: Handover

    async def start(self, nursery: trio.Nursery) -> None:
        broker = partial(serve, bounds_of(Settings()), MemoryStore(), self.doorways)
        self.running = await nursery.start(partial(broker, members=self.members))

    def join(self) -> None:
        node = self.running.node
        self.handover = Handover(
            self.members,
            WorkerPorts(self.paths, [listen_unix(self.paths[self.members.name])]),
            node,
            self.running.reactor,
            self.doorways,
            self.running.clock,
        )
        node.handshakes.placement = self.handover
        self.running.onlookers.append(lambda now_s, _: self.handover.tick(now_s))

    def close(self) -> None:
        peers = [each.sock for each in self.handover._peers.values() if each.sock is not None]
        for sock in (self.handover._listeners[0]._sock, *peers, *self.handover._incoming):
            sock.close()


@asynccontextmanager
async def two_workers(data: Path) -> AsyncIterator[list[InProcessWorker]]:
    workers = [InProcessWorker(index, data) for index in range(WORKERS)]
    async with trio.open_nursery() as nursery:
        for worker in workers:
            await worker.start(nursery)
        yield workers
        for worker in workers:
            worker.running.stop.set()
    for worker in workers:
        worker.close()


async def test_time_before_a_connection_is_handed_over_counts_at_the_owner(tmp_path: Path) -> None:
    ends: list[tuple[object, float, float, str]] = []
    async with two_workers(tmp_path) as (accepting, owner):
        owner.running.node.attempts.tell = lambda *attempt: ends.append(attempt)
        accepting.join()
        stream = await trio.open_tcp_stream(*accepting.running.address)
        await stream.send_all(encode(Connect(names(1, 1)[0], MQTT_5), MQTT_5))
        while not accepting.handover._peers["worker-1"].waiting:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await trio.sleep(WAIT_S)
        joined_s = owner.running.clock()
        owner.join()
        assert (await stream.receive_some())[:1] == b"\x20"
        await stream.aclose()
    ((_, since_s, _, outcome),) = ends
    assert outcome == CONNECTED
    assert since_s < joined_s
