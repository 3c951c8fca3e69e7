"""A broker that is alone waits for its sockets in trio's place, and other tasks do not notice."""

import random
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import thread_time
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel

from flowguard.broker.clock import unix_clock
from flowguard.broker.memory import bounds_of
from flowguard.broker.sockets import other_tasks
from flowguard.broker.sockets.other_tasks import OtherTasks, epoll_descriptor
from flowguard.broker.sockets.reactor import Reactor
from flowguard.codec.packets import Puback
from flowguard.config import Settings
from flowguard.node.node import Node, Surroundings
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.support.patience import HANG_S
from tests.support.real import SlowStore, broker, connect, offline_subscriber, publishes, until

PASSES = 50


@asynccontextmanager
async def reactor() -> AsyncIterator[Reactor]:
    """A reactor without clients that has waited for sockets."""
    clock, store = unix_clock(), MemoryStore()
    bounds = bounds_of(Settings())
    node = Node(
        bounds,
        clock(),
        Surroundings(lambda: "r", random.Random(1).random, thread_time),
    )
    serving = Reactor(node, store, clock, lambda: True, alone=True)

    def has_waited() -> bool:
        serving.wake()
        return serving.idle_s > 0

    try:
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serving.run)
                await until(has_waited)
                yield serving
                nursery.cancel_scope.cancel()
    finally:
        serving.close()


@pytest.fixture(params=["in trio's place", "in trio"])
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of waiting: one version of trio keeps its descriptor elsewhere."""
    if request.param == "in trio":
        monkeypatch.setattr(other_tasks, "epoll_descriptor", lambda: None)
    return str(request.param)


# --- who can run -----------------------------------------------------------------------------


async def test_who_comes_after_us_in_a_batch_can_run_though_no_queue_has_it() -> None:
    others = OtherTasks.watch()
    assert others is not None
    tasks: list[trio.lowlevel.Task] = []
    queued: set[int] = set()

    async def busy() -> None:
        tasks.append(trio.lowlevel.current_task())
        while True:
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy)
        for _ in range(PASSES):
            await trio.lowlevel.checkpoint()
            if tasks:
                assert others.runnable == set(tasks)
                queued.add(trio.lowlevel.current_statistics().tasks_runnable)
        nursery.cancel_scope.cancel()
    assert queued == {0, 1}
    others.close()


async def test_who_is_woken_can_run_and_who_waits_cannot() -> None:
    others = OtherTasks.watch()
    assert others is not None
    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(event.wait)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert not others.runnable
        event.set()
        assert len(others.runnable) == 1
    others.close()


async def test_the_next_deadline_says_how_long_nobody_can_run() -> None:
    others = OtherTasks.watch()
    assert others is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 10)
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        assert 0 < others.rest_s() <= 10
        nursery.cancel_scope.cancel()
    others.close()


async def test_a_trio_with_its_descriptor_elsewhere_is_waited_for_in_trio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert epoll_descriptor() is not None
    with monkeypatch.context() as elsewhere:  # Trio itself needs it again when this task waits.
        elsewhere.setattr("trio._core._run.GLOBAL_RUN_CONTEXT", SimpleNamespace())
        found, others = epoll_descriptor(), OtherTasks.watch()
    assert found is None
    assert others is None


# --- what others notice ----------------------------------------------------------------------


async def test_only_where_trio_is_known_it_waits_in_its_place(waits: str) -> None:
    async with reactor() as serving:
        await trio.sleep(0.01)
        if waits == "in trio's place":
            await until(lambda: serving.turns.idle_s > 0)
        else:
            assert serving.turns.idle_s == 0


async def test_it_never_waits_while_another_task_can_run() -> None:
    async with reactor() as serving:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        before_s = serving.turns.idle_s
        for _ in range(PASSES):
            serving.wake()
            await trio.lowlevel.checkpoint()
        assert serving.turns.idle_s == before_s


async def test_a_thread_a_socket_and_a_deadline_end_its_wait(waits: str) -> None:
    async with reactor():
        assert await trio.to_thread.run_sync(threading.get_ident) != threading.get_ident()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            writer = threading.Timer(0.01, theirs.send, [b"x"])
            writer.start()
            await trio.lowlevel.wait_readable(ours)
            writer.join()
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_it_is_cancelled_while_it_waits(waits: str) -> None:
    token = trio.lowlevel.current_trio_token()
    async with reactor(), trio.open_nursery() as nursery:
        cancel = nursery.cancel_scope.cancel
        canceller = threading.Timer(0.01, token.run_sync_soon, [cancel])
        canceller.start()
        await trio.sleep_forever()
    canceller.join()


async def test_nobody_is_counted_any_more_when_it_has_ended() -> None:
    async with reactor() as serving:
        counted = serving.sockets._runnable
    counted.clear()
    await trio.lowlevel.checkpoint()
    assert not counted


async def test_others_are_served_while_its_sockets_never_fall_silent(waits: str) -> None:
    async with broker(alone=True) as running:
        publisher = await connect(running, "p")
        ours, theirs = trio.socket.socketpair()

        async def flood() -> None:
            while True:
                await publisher.send(*[Publish("t", b"x")] * 1_000)

        async def answer() -> None:
            while data := await theirs.recv(1):
                await theirs.send(data)

        with ours, theirs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood)
                nursery.start_soon(answer)
                for _ in range(PASSES):
                    await ours.send(b"x")
                    assert await ours.recv(1) == b"x"
                nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(publisher.stream)


async def test_commits_of_a_thread_are_answered(waits: str) -> None:
    async with broker(store=SlowStore(), calm=True, alone=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        for message in publishes("t", PASSES):
            await publisher.send(message)
            assert await publisher.expect(Puback) == Puback(message.packet_id)
        await publisher.close()
