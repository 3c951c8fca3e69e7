"""Blocks over a guard, under trio and asyncio; time is virtual."""

import asyncio

import pytest
import trio
import trio.testing

from broker_adapter import AsyncGuard, GuardedClient, RefusedError, asyncio_guard, trio_guard
from flowguard.config import FlowSettings
from flowguard.flow import Admission, Grant, Reason
from tests.broker_adapter.toy_host import (
    FLOODING,
    OUTSTANDING,
    QUIET,
    ROUNDS,
    WORK_S,
    Seen,
    crowd_on_asyncio,
    crowd_on_trio,
    open_door,
)
from tests.support.virtual_loop import run

BACKLOG_S = FLOODING * OUTSTANDING * WORK_S
"""Wait of a packet behind the whole flood."""


def check_guarded(seen: Seen, guard: AsyncGuard) -> None:
    assert len(seen.quiet_s) == QUIET * ROUNDS
    settled_s = sorted(seen.quiet_s[QUIET * ROUNDS // 3 :])
    assert settled_s[-1] < BACKLOG_S / 10
    assert seen.in_process_max > 20 * 10, "the flood has tried"
    assert guard.guard.grant.window < 10
    assert (guard.guard.in_process, guard.guard.waiting_count) == (0, 0)


async def test_on_trio_quiet_clients_do_not_wait_behind_a_flood(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard() as guard:
        seen = await crowd_on_trio(guard, guard.packet)
        check_guarded(seen, guard)
        control = await crowd_on_trio(guard, lambda _: open_door())
    assert min(control.quiet_s[QUIET:]) > BACKLOG_S / 2


def test_on_asyncio_quiet_clients_do_not_wait_behind_a_flood() -> None:
    async def main() -> None:
        grants: list[Grant] = []
        async with asyncio_guard.open_guard(on_window=grants.append) as guard:
            seen = await crowd_on_asyncio(guard, guard.packet)
            check_guarded(seen, guard)
            assert min(grant.window for grant in grants) < 10
            control = await crowd_on_asyncio(guard, lambda _: open_door())
        assert min(control.quiet_s[QUIET:]) > BACKLOG_S / 2

    run(main())


async def test_a_crowd_of_connects_is_served_few_at_a_time_and_the_rest_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = FlowSettings(connects_in_process_max=8, connect_buffer_max=100)
    at_once = most = 0
    refusals: list[RefusedError] = []
    connected: list[str] = []
    seen: list[tuple[str, Reason | None, float]] = []

    def on_reject(client: GuardedClient, kind: str, admission: Admission) -> None:
        assert kind == "connect"
        seen.append((client.client_id, admission.reason, admission.retry_after_s))

    async def connect(guard: AsyncGuard, name: str) -> None:
        nonlocal at_once, most
        try:
            async with guard.connecting(guard.client(name)):
                at_once += 1
                most = max(most, at_once)
                await trio.sleep(0.05)
                at_once -= 1
            connected.append(name)
        except RefusedError as refused:
            refusals.append(refused)

    async with trio_guard.open_guard(settings, on_reject=on_reject) as guard:
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(connect, guard, f"c{number}")
        assert most <= 8
        assert len(connected) + len(refusals) == 300
        assert len(connected) > 50
        assert {name for name, _, _ in seen} | {*connected} == {f"c{each}" for each in range(300)}
        told = [(refused.reason, refused.retry_after_s) for refused in refusals]
        assert sorted(told) == sorted((reason, after_s) for _, reason, after_s in seen)
        assert all(refused.reason is not None for refused in refusals)
        assert all(refused.retry_after_s >= 0.5 for refused in refusals)
        assert guard.guard.connects_in_process == guard.guard.connects_waiting == 0


async def test_a_second_connect_of_the_same_client_takes_the_place_of_the_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard(FlowSettings(connects_in_process_max=1)) as guard:
        async with trio.open_nursery() as nursery, guard.connecting(guard.client("other")):

            async def first() -> None:
                with pytest.raises(RefusedError) as caught:
                    async with guard.connecting(guard.client("me")):
                        raise AssertionError
                assert caught.value.reason is Reason.GATE_SUPERSEDED

            async def second() -> None:
                async with guard.connecting(guard.client("me")):
                    pass

            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(second)
            await trio.testing.wait_all_tasks_blocked()
        assert guard.guard.connects_in_process == guard.guard.connects_waiting == 0


async def test_a_cancelled_block_gives_its_place_back_wherever_it_stood(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard(FlowSettings(window_max=1)) as guard:
        client = guard.client()
        with trio.move_on_after(1):
            async with guard.packet(client), guard.packet(client):
                raise AssertionError
        assert (guard.guard.in_process, guard.guard.waiting_count) == (0, 0)
        with pytest.raises(ValueError, match="mine"):
            async with guard.connecting(client):
                raise ValueError("mine")
        assert guard.guard.connects_in_process == 0


async def test_a_place_that_another_thread_gives_back_wakes_the_one_who_waits() -> None:
    async with trio_guard.open_guard(FlowSettings(window_max=1)) as guard:
        client = guard.client()
        packet = guard.guard.start(client, guard.clock())
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                async with guard.packet(client):
                    pass

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            now_s = guard.clock()
            await trio.to_thread.run_sync(lambda: guard.guard.done(packet, now_s))

    async def on_asyncio() -> None:
        async with asyncio_guard.open_guard(FlowSettings(window_max=1)) as guard:
            client = guard.client()
            packet = guard.guard.start(client, guard.clock())
            now_s = guard.clock()
            releasing = asyncio.to_thread(guard.guard.done, packet, now_s)

            async def wait() -> None:
                async with guard.packet(client):
                    pass

            await asyncio.gather(wait(), releasing)

    await trio.to_thread.run_sync(lambda: asyncio.run(on_asyncio()))


async def test_blocks_of_a_client_that_is_gone_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard(FlowSettings(window_max=1)) as guard:
        client = guard.client()
        async with trio.open_nursery() as nursery, guard.packet(client):

            async def wait() -> None:
                with pytest.raises(RefusedError) as caught:
                    async with guard.packet(client):
                        raise AssertionError
                assert caught.value.reason is None

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            guard.gone(client)


async def test_a_block_of_a_client_that_is_gone_before_its_connect_is_admitted_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard(FlowSettings(connects_in_process_max=1)) as guard:
        client = guard.client()
        async with trio.open_nursery() as nursery, guard.connecting(guard.client()):

            async def wait() -> None:
                with pytest.raises(RefusedError) as caught:
                    async with guard.connecting(client):
                        raise AssertionError
                assert caught.value.reason is None

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            guard.gone(client)
        assert guard.guard.connects_in_process == guard.guard.connects_waiting == 0


async def test_a_block_is_entered_by_one_task_at_a_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio_guard.open_guard() as guard:
        block = guard.packet(guard.client())
        for _ in range(2):
            async with block:
                with pytest.raises(RuntimeError, match="entered already"):
                    await block.__aenter__()
            assert guard.guard.in_process == 0
