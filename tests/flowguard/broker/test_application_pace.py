"""Commits and pages of applications leave time to the tasks that share the processor with them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from flowguard.broker.commits.application_committer import (
    COMMIT_EVERY_S,
    READ_REST,
    ApplicationCommitter,
)
from flowguard.records import NEVER_S, Append, Delivery, QueueEntry, StoreOp
from flowguard.session.outbound.backlog import PAGE_MAX
from flowguard.session.outbound.fetch import Fetch, PageOwner
from flowguard.stores.base import FETCH_BYTES, POS_MAX
from flowguard.types import Publish
from tests.support.stage import Stage
from tests.support.store_apart import StoreApart

NAME = "app-1"
PAGE_S = 0.01


class SlowStore(StoreApart):
    """A page takes `PAGE_S`, and is as long as it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.read_s = 0.0
        self.read_count = 0

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        self.read_s += PAGE_S
        self.read_count += 1
        return cast("list[QueueEntry]", [None] * limit)


class Pace:
    """A committer of applications that runs, and the clock that it looks at."""

    def __init__(self) -> None:
        self.store = SlowStore()
        self.stage = Stage(store=self.store)
        self.committer = ApplicationCommitter(self.stage.node, self.store, self.clock)
        self._came = trio.Event()
        turns = SimpleNamespace(end_slice=self._answer)
        self.reactor: Any = SimpleNamespace(turns=turns, wake=lambda: None)

    def clock(self) -> float:
        return trio.current_time() + self.store.read_s

    def _answer(self, now_s: float) -> None:
        while self.stage.lane.journal.is_answering:
            self.stage.node.journal.answer(100, now_s)
        came, self._came = self._came, trio.Event()
        came.set()

    async def commit(self, messages: int = 0) -> None:
        """Commit work for applications, with `messages` messages to one of them."""
        done = trio.Event()
        message = Delivery(Publish("t", b"x"), 1, False, (), NEVER_S)
        ops: list[StoreOp] = [Append(NAME, pos, message) for pos in range(1, messages + 1)]
        self.stage.lane.journal.append(ops, lambda _: done.set(), self.clock())
        self.committer.notify()
        await done.wait()

    def ask(self, count: int) -> None:
        """Request `count` pages."""
        self.stage.lane.names.add(NAME)
        owners = [PageOwner(NAME) for _ in range(count)]
        wanted = [Fetch(owner, 0, 999, PAGE_MAX, FETCH_BYTES, looks=False) for owner in owners]
        self.committer.take_fetches(wanted)

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._came.wait()

    @property
    def pages(self) -> int:
        """Number of pages that have been read."""
        return len(self.stage.node.pages.ready)


@asynccontextmanager
async def running() -> AsyncIterator[Pace]:
    pace = Pace()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pace.committer.run, pace.reactor)
        yield pace
        nursery.cancel_scope.cancel()


async def test_commits_begin_apart_however_little_is_in_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        began_s = trio.current_time()
        for _ in range(10):
            await pace.commit()
        assert trio.current_time() - began_s >= 9 * COMMIT_EVERY_S


async def test_a_commit_after_a_while_begins_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        for _ in range(3):
            await trio.sleep(COMMIT_EVERY_S)
            began_s = trio.current_time()
            await pace.commit()
            assert trio.current_time() == began_s


async def test_pages_are_read_one_after_the_other_where_there_is_no_live_work(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        began_s = trio.current_time()
        pace.ask(6)
        await pace.until(lambda: pace.pages == 6)
        assert trio.current_time() == began_s


async def test_beside_live_work_pages_rest_for_a_multiple_of_what_they_took(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It may be in either journal."""
    async with running() as pace:
        for journal in (pace.stage.node.journal, pace.stage.lane.journal):
            pace.stage.node.pages.ready.clear()
            journal.moving.share(10)
            began_s = trio.current_time()
            pace.ask(4)
            await pace.until(lambda: pace.pages == 2)
            assert trio.current_time() == began_s
            await pace.until(lambda: pace.pages == 4)
            assert trio.current_time() - began_s == pytest.approx(READ_REST * 2 * PAGE_S)
            journal.moving.have_all()
            await trio.sleep(1.0)


async def test_who_is_behind_gets_more_than_comes_to_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        pace.stage.lane.journal.moving.share(PAGE_MAX)
        for _ in range(3):
            await pace.commit(PAGE_MAX)
            began_s = trio.current_time()
            pace.ask(2)
            count = pace.store.read_count
            await pace.until(lambda count=count: pace.store.read_count == count + 2)
            pace.stage.node.pages.ready.clear()
            assert trio.current_time() == began_s


async def test_what_came_counts_until_twice_as_much_is_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        pace.stage.lane.journal.moving.share(PAGE_MAX)
        await pace.commit(3 * PAGE_MAX)
        began_s = trio.current_time()
        pace.ask(6)
        await pace.until(lambda: pace.pages == 6)
        assert trio.current_time() == began_s


async def test_nobody_is_asked_for_a_commit_that_is_put_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running() as pace:
        journal = pace.stage.node.journal
        await pace.commit()
        pace.stage.lane.journal.append([], lambda _: None, pace.clock())
        assert journal.wants_store
        pace.committer.notify()
        await trio.sleep(COMMIT_EVERY_S / 2)
        assert not journal.wants_store
        await trio.sleep(COMMIT_EVERY_S)
        assert not journal.wants_store  # It is done.


def test_live_work_of_applications_is_over_when_there_was_none_for_a_tick() -> None:
    stage = Stage(store=StoreApart())
    journal = stage.lane.journal
    journal.append([], lambda _: None, stage.now_s)
    stage.settle()
    assert journal.moving.is_shared
    stage.advance(0.2)
    assert not journal.moving.is_shared
