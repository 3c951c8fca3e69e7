"""Delivers QoS 2 messages that one worker owes to another, while no broker runs.

All workers run in this process, without listeners, and deliver the messages themselves until none
is owed. So each message enters the right queues, once.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Final, final

import trio

from flowguard.app.failures import end_of
from flowguard.app.workers.data_folder import Incarnations
from flowguard.app.workers.shares import share_of
from flowguard.bounds import Bounds
from flowguard.broker.memory import bounds_of, memory_limit_bytes
from flowguard.broker.server import Running, serve
from flowguard.cluster import NOT_OWED, Members, Mesh, OwedAddress
from flowguard.config import Settings
from flowguard.errors import NoSpaceError, StoreError
from flowguard.records import SinkKind, sink_of
from flowguard.stores import Store

UNLIMITED: Final = 2**62
"""A limit on queues that is never reached. Few messages are owed, and none may be dropped."""
PAGE: Final = 1_000
PAUSE_S: Final = 0.002
"""Pause in which the workers process received messages."""


def owed_count(stores: Mapping[str, Store]) -> int:
    """Return the number of messages that a worker owes and another one has not taken."""
    marks: dict[tuple[str, str], OwedAddress] = {}
    """The highest address that a worker has taken from another one."""
    owing: list[tuple[str, str, str, int]] = []
    """Worker, peer, key and epoch of each queue with messages for a peer."""
    for name, store in stores.items():
        for record in store.sessions():
            kind, peer = sink_of(record.client_id)
            if kind is SinkKind.PEER:
                epoch, *mark = map(int, record.user.split())
                marks[name, peer] = (mark[0], mark[1])
                if record.unsettled_count:
                    owing.append((name, peer, record.client_id, epoch))
    found = 0
    for name, peer, key, epoch in owing:
        taken = marks.get((peer, name), NOT_OWED)
        if epoch >= taken[0]:
            found += _count_after(stores[name], key, taken[1] if epoch == taken[0] else 0)
    return found


def _count_after(store: Store, key: str, pos: int) -> int:
    found = 0
    while page := store.fetch(key, pos, PAGE):
        found += len(page)
        pos = page[-1].pos
    return found


def deliver_owed(data: Path, stores: Mapping[str, Store]) -> None:
    """Run the workers of these stores until they owe no message, then close the stores.

    Raises `StoreError`.
    """
    try:
        trio.run(_deliver, data, stores)
    except BaseExceptionGroup as group:
        raise StoreError("\n".join(end_of(group)[:2])) from group


async def _deliver(data: Path, stores: Mapping[str, Store]) -> None:
    incarnations, names = Incarnations(data), dict.fromkeys(stores, "")
    async with trio.open_nursery() as nursery:
        workers: list[Running] = []
        for name, store in stores.items():
            members = Members(name, incarnations.next(), names)
            run = partial(serve, _bounds(len(stores)), store, (), members=members)
            workers.append(await nursery.start(run))
        links = [InnerLink(dialler, accepter) for dialler, accepter in permutations(workers, 2)]
        while not all(map(_owes_nothing, workers)):
            for link in links:
                link.carry()
            if any(each.node.state.read_only for each in workers):
                raise NoSpaceError(f"{data}: messages between workers need space on the disk")
            await trio.sleep(PAUSE_S)
        for each in workers:
            each.stop.set()


@final
class InnerLink:
    """A link between two workers of this process."""

    def __init__(self, dialler: Running, accepter: Running) -> None:
        here, there = _mesh(dialler), _mesh(accepter)
        self._ends = [
            (dialler, here, here.dial(there.members.name)),
            (accepter, there, there.accept()),
        ]

    def carry(self) -> None:
        """Carry the output of each end to the other."""
        for (_, here, out), (worker, there, into) in permutations(self._ends):
            if data := here.output(out):
                now_s = worker.clock()
                there.receive(into, data, now_s)
                worker.reactor.turns.end_slice(now_s)
                worker.reactor.wake()


def _mesh(worker: Running) -> Mesh:
    mesh = worker.node.router.peers.mesh
    assert mesh is not None
    return mesh


def _bounds(count: int) -> Bounds:
    bounds = bounds_of(share_of(Settings(), count, 0, memory_limit_bytes(), UNLIMITED))
    session = bounds.settings.session.model_copy(
        update={"queue_messages_max": UNLIMITED, "queue_bytes_max": UNLIMITED}
    )
    return replace(bounds, settings=bounds.settings.model_copy(update={"session": session}))


def _owes_nothing(worker: Running) -> bool:
    peers = worker.node.router.peers.by_name.values()
    return all(peer.is_known and not peer.outgoing.messages_count for peer in peers)
