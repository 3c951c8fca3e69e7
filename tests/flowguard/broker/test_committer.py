"""An error of a request in the commit thread is returned to its caller, and has no other effect.

Only the store's own errors end a broker.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flowguard.broker.commits.committer import Committer
from flowguard.broker.server import Running
from flowguard.broker.sockets.reactor import Reactor
from flowguard.codec.packets import Suback, Subscribe
from flowguard.config import StoreSettings
from flowguard.errors import StallError, StoreError, SyncError
from flowguard.node.node import Node
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore
from flowguard.stores.rocks import RocksStore
from flowguard.types import SubscriptionOptions
from tests.support.patience import HANG_S
from tests.support.real import broker, connect, until


def open_store(folder: Path) -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0)
    return RocksStore(folder, settings, wall_s=lambda: 1.7e9, random_node=lambda: 7)


class Failing(MemoryStore):
    """Backups fail like that."""

    immediate = False

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def backup(self, folder: Path) -> None:
        raise self._error


class Stalled(MemoryStore):
    """Takes no commit while `stalls`."""

    immediate = False
    stalls = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        if self.stalls:
            raise StallError("no server answers")
        return super().commit(ops)


async def test_log_says_how_long_the_store_was_unavailable() -> None:
    store = Stalled()
    with capture_logs() as lines:
        async with broker(store=store) as running:
            client = await connect(running, "c", durable=True)
            store.stalls = True
            await client.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
            await until(lambda: any("unavailable" in line["event"] for line in lines))
            await trio.sleep(0.3)
            store.stalls = False
            await client.expect(Suback)
            await client.close()
    (line,) = [each for each in lines if each["event"].startswith("store available again")]
    assert line["waited_s"] >= 0.2


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 5_000, "no/such", "..", "/"])
async def test_a_folder_that_cannot_be_is_told_to_who_asked(tmp_path: Path, name: str) -> None:
    async with broker(store=open_store(tmp_path / "store")) as running:
        with pytest.raises(StoreError):
            await running.backup(tmp_path / name)
        client = await connect(running, "c", durable=True)
        await client.close()


@pytest.mark.parametrize(
    "error", [TypeError("t"), ValueError("v"), OSError(24, "o"), MemoryError(), KeyError("k")]
)
async def test_a_backup_that_breaks_breaks_nothing_else(error: Exception) -> None:
    async with broker(store=Failing(error)) as running:
        with pytest.raises(StoreError, match=error.__class__.__name__):
            await running.backup(Path("/somewhere"))
        client = await connect(running, "c", durable=True)
        await client.close()


async def test_a_disk_that_does_not_sync_ends_the_broker() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(SyncError), flatten_subgroups=True):
        async with broker(store=Failing(SyncError("lost"))) as running:
            await running.backup(Path("/somewhere"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.text(st.characters(), min_size=1, max_size=20))
@example(name="\ud800")
@example(name="\0")
def test_a_backup_is_a_copy_or_a_store_error_whatever_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "store"
    store = open_store(folder)
    try:
        try:
            store.backup(folder.parent / name)
        except StoreError:
            return
        open_store(folder.parent / name).close()
    finally:
        store.close()


# --- upkeep ----------------------------------------------------------------------------------


class LookedAfter(MemoryStore):
    """Counts its upkeep calls, and has work for a given number of them."""

    immediate = False

    def __init__(self, upkeep_ticks: int, left: int = 0) -> None:
        super().__init__()
        self.upkeep_ticks = upkeep_ticks
        self.count = 0
        self.left = left

    def maintain(self) -> bool:
        self.count += 1
        self.left = max(0, self.left - 1)
        return self.left > 0


NEVER = 1_000_000


async def ticks(running: Running, number: int) -> None:
    """Wait for `number` ticks."""
    seen: list[float] = []

    def look(now_s: float, _: int) -> None:
        seen.append(now_s)

    running.onlookers.append(look)
    await until(lambda: len(seen) >= number)
    running.onlookers.remove(look)


async def test_a_store_with_nothing_to_do_is_left_alone_for_as_long_as_it_says() -> None:
    store = LookedAfter(NEVER)
    async with broker(store=store) as running:
        await ticks(running, 10)
        assert store.count == 1


@pytest.mark.parametrize(("upkeep_ticks", "left"), [(1, 0), (3, 0), (NEVER, 1_000)])
async def test_a_store_is_looked_after_again_when_it_says_or_has_something_left(
    upkeep_ticks: int, left: int
) -> None:
    store = LookedAfter(upkeep_ticks, left)
    async with broker(store=store):
        await until(lambda: store.count >= 4)


class Gated(LookedAfter):
    """Commits while `may_commit` is set, and writes down what it is called for."""

    def __init__(self) -> None:
        super().__init__(NEVER)
        self.calls: list[str] = []
        self.may_commit = threading.Event()
        self.may_commit.set()

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.calls.append("commit")
        assert self.may_commit.wait(HANG_S)
        return super().commit(ops)

    def maintain(self) -> bool:
        self.calls.append("maintain")
        return super().maintain()


async def come_and_go(running: Running, client_id: str) -> None:
    client = await connect(running, client_id, durable=True)
    await client.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_upkeep_that_falls_due_while_a_commit_is_under_way_follows_the_next_in_one_call(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sync = trio.to_thread.run_sync

    async def noted(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        store.calls.append("call")
        return await run_sync(function, *arguments, **options)

    store = Gated()
    async with broker(store=store) as running, trio.open_nursery() as nursery:
        await until(lambda: store.count > 0)
        monkeypatch.setattr(trio.to_thread, "run_sync", noted)
        await ticks(running, 1)
        store.calls.clear()
        store.may_commit.clear()
        nursery.start_soon(come_and_go, running, "c")
        await until(lambda: "commit" in store.calls)
        nursery.start_soon(come_and_go, running, "d")
        await until(lambda: running.node.journal.is_urgent)
        await ticks(running, count)
        store.may_commit.set()
        await until(lambda: len(store.calls) >= 6)
        calls = store.calls[:6]
        if calls[2] == "maintain":  # On a slow machine upkeep was due before the first commit, too.
            del calls[2]
        assert calls[:5] == ["call", "commit", "call", "commit", "maintain"]


class Timed(MemoryStore):
    """A commit takes 1 ms of `now_s`, a slice of upkeep 50."""

    immediate = False
    now_s = 0.0

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.now_s += 0.001
        return super().commit(ops)

    def maintain(self) -> bool:
        self.now_s += 0.05
        return False


def node_with(journal: object) -> Node:
    pages = SimpleNamespace(to_read=list, is_hungry=False)
    state = SimpleNamespace(read_only=False)
    return cast("Node", SimpleNamespace(journal=journal, pages=pages, state=state, fence=nothing))


def nothing(*_: object) -> None:
    pass


async def test_upkeep_is_no_part_of_how_long_a_commit_takes() -> None:
    took_s: list[float] = []
    store = Timed()
    journal = SimpleNamespace(
        take=lambda _: SimpleNamespace(ops=[]),
        durable=lambda _batch, _now_s, commit_s: took_s.append(commit_s),
        is_due=lambda *, ticked: ticked,
        is_committing=True,
    )
    turns = SimpleNamespace(awaited=False, end_slice=nothing)
    reactor = cast("Reactor", SimpleNamespace(turns=turns, wake=nothing))
    committer = Committer(node_with(journal), store, lambda: store.now_s)
    for _ in range(3):
        committer.tick()
        await committer._work_once(reactor)
    assert store.now_s == pytest.approx(3 * 0.051)
    assert took_s == pytest.approx([0.001] * 3)


async def test_what_nobody_waits_for_is_committed_with_the_next_tick() -> None:
    journal = SimpleNamespace(is_due=lambda *, ticked: ticked, is_committing=False)
    committer = Committer(node_with(journal), LookedAfter(NEVER), lambda: 0.0)
    committer._upkeep_in = NEVER
    committer.tick()
    assert committer._work.is_set()


async def test_a_store_that_is_told_something_is_looked_after_with_the_next_tick() -> None:
    store = LookedAfter(NEVER)
    async with broker(store=store) as running:
        await until(lambda: store.count > 0)
        for number in range(3):
            before = store.count
            client = await connect(running, f"{number}", durable=True)
            await until(lambda: store.count > before)  # noqa: B023
            await client.close()
