"""Unused memory of the allocator is given back to the system when the loop is idle."""

import gc
import random
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

import pytest
import trio

from flowguard.broker import memory
from flowguard.broker.clock import unix_clock
from flowguard.broker.memory import bounds_of, give_back_memory
from flowguard.config import Settings
from flowguard.node.node import Node, Surroundings
from flowguard.node.upkeep.holdings import held_bytes
from tests.support.patience import HANG_S
from tests.support.stage import Stage

KEPT_BYTES = 1024 * 1024 * 1024


class Loop:
    """A loop that is busy for `busy_looks` looks, and waits for events from then on."""

    def __init__(self, busy_looks: int) -> None:
        self._busy = 2 * busy_looks
        self.asked = 0
        """Twice a look."""

    def idle_s(self) -> float:
        self.asked += 1
        return float(max(0, self.asked - self._busy))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """A calm node in a process that has much more memory than the node holds."""

    @contextmanager
    def gauge() -> Iterator[object]:
        yield lambda: KEPT_BYTES

    monkeypatch.setattr(memory, "memory_gauge", gauge)
    monkeypatch.setattr(memory, "LOOK_S", 0.001)
    monkeypatch.setattr(memory, "TRIM_S", 0.002)
    return Node(
        bounds_of(Settings()),
        unix_clock()(),
        Surroundings(lambda: "r", random.Random(1).random, thread_time),
    )


async def looks_until_given_back(node: Node, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a loop was looked at until memory was given back for the first time."""
    given_back, looks = threading.Event(), list[int]()

    def trim(_: int) -> int:
        looks.append(loop.asked // 2)
        given_back.set()
        return 1

    monkeypatch.setattr(memory, "allocator_trim", lambda: trim)
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_back_memory, node, loop.idle_s)
            await trio.to_thread.run_sync(given_back.wait, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
    return looks[0]


async def test_memory_is_given_back_when_the_loop_has_little_to_do(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await looks_until_given_back(node, Loop(0), monkeypatch) == 1
    assert await looks_until_given_back(node, Loop(7), monkeypatch) == 8


async def test_memory_is_given_back_though_the_loop_is_busy_for_ever(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = await looks_until_given_back(node, Loop(2**40), monkeypatch)
    assert looks == memory.BUSY_MAX + 1


# --- above the limit -----------------------------------------------------------------------------

LIMITED = {"flow": {"memory_max_bytes": KEPT_BYTES // 4}}
FEW = 16
"""Connections whose buffers explain no such memory."""


class Garbage:
    """An object in a reference cycle: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The collector does not run by itself, as in a broker that allocates nothing."""
    gc.disable()
    yield
    gc.enable()


def pressure(stage: Stage) -> float:
    """The pressure on a node whose process has kept this memory for two seconds."""
    for _ in range(20):
        stage.node.guard.observe_memory(held_bytes(stage.node), KEPT_BYTES)
        stage.advance(0.1)
    return stage.node.guard.grant.pressure.value


@pytest.mark.usefixtures("node", "no_collection")
async def test_garbage_is_collected_when_resident_memory_is_the_pressure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(LIMITED)
    assert pressure(stage) > memory.CALM
    garbage = weakref.ref(Garbage())
    assert garbage() is not None
    busy = Loop(2**40)
    assert await looks_until_given_back(stage.node, busy, monkeypatch) == 1
    assert garbage() is None


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("connections", [0, FEW, FEW + 1])
async def test_memory_that_stays_without_clients_locks_no_newcomer_out(
    connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(LIMITED)
    clients = [stage.open() for _ in range(connections)]
    assert pressure(stage) > memory.CALM
    await looks_until_given_back(stage.node, Loop(0), monkeypatch)
    assert (pressure(stage) <= memory.CALM) == (len(clients) <= FEW)
