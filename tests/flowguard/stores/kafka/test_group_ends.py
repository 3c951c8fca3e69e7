"""Tasks on the link's loop end when they are cancelled, in any state; without a server."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka.errors import KafkaConnectionError

from flowguard.stores.group_feed import GroupNews
from flowguard.stores.kafka.connection.link import patiently, quietly
from flowguard.stores.kafka.groups import consumer as group_consumer
from flowguard.stores.kafka.groups import tail as group_tail
from flowguard.stores.kafka.groups.capacity import GroupRoom
from flowguard.stores.kafka.groups.consumer import GroupConsumer
from flowguard.stores.kafka.groups.roster import GroupRoster
from flowguard.stores.kafka.groups.tail import GroupTail
from flowguard.stores.kafka.groups.window import GroupWindows
from tests.support.virtual_loop import run


def cancelled(work: Callable[[], Awaitable[object]], after_s: float) -> bool:
    """Return True if a task that is cancelled once, after `after_s`, ends as cancelled."""

    async def test() -> bool:
        task = asyncio.ensure_future(work())
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.wait([task], timeout=100.0)
        is_cancelled = task.cancelled()
        task.cancel()
        return is_cancelled

    return run(test())


async def is_away(*_: object, **__: object) -> None:
    raise KafkaConnectionError("node 1 is gone")


LINK: Any = SimpleNamespace(options={}, servers="somewhere", look_at=is_away)


async def never() -> None:
    await asyncio.Event().wait()


class Away:
    """The driver's consumer without a server. It raises that no server answers, also when it is
    cancelled."""

    def __init__(self, **_: object) -> None:
        self.stops_count = 0

    def subscribe(self, *_: object, **__: object) -> None:
        return

    async def start(self) -> None:
        try:
            await never()
        except asyncio.CancelledError:
            raise KafkaConnectionError("node 1 is gone") from None

    async def stop(self) -> None:
        await asyncio.sleep(0.5)

    async def getmany(self, **_: object) -> None:
        raise KafkaConnectionError("node 1 is gone")


class Joining:
    """The driver's consumer, for which its group has time some seconds after it was to leave."""

    def __init__(self, leaves_after_s: float) -> None:
        self.ends: list[str] = []
        self._leaves_after_s = leaves_after_s
        self._client = SimpleNamespace(close=self._end("client"))
        self._fetcher = SimpleNamespace(close=self._end("fetcher"))
        self._coordinator = SimpleNamespace(_stop_heartbeat_task=self._end("heartbeat"))

    def _end(self, name: str) -> Callable[[], Awaitable[None]]:
        async def end() -> None:
            self.ends.append(name)

        return end

    def subscribe(self, *_: object, **__: object) -> None:
        return

    async def start(self) -> None:
        return

    async def getmany(self, **_: object) -> dict[object, object]:
        await asyncio.sleep(0.5)
        return {}

    async def stop(self) -> None:
        await asyncio.sleep(self._leaves_after_s)
        self.ends.append("left")


@pytest.mark.parametrize(
    ("leaves_after_s", "is_broken", "ends"),
    [
        (20.0, False, ["left"]),
        (20.0, True, ["left"]),
        (1_000.0, False, ["heartbeat", "fetcher", "client"]),
    ],
    ids=["reading", "leaving already", "never"],
)
def test_a_member_leaves_its_group_however_long_that_takes_to_give_out_partitions(
    leaves_after_s: float, is_broken: bool, ends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it takes too long, nothing of it is left behind, not even its sockets."""
    driver = Joining(leaves_after_s)
    if is_broken:
        driver.getmany = is_away  # type: ignore[assignment]
    monkeypatch.setattr(group_consumer, "AIOKafkaConsumer", lambda **_: driver)

    async def consume() -> None:
        windows = GroupWindows(GroupRoom(1 << 20))
        await GroupConsumer(LINK, None, "$share/g/t", "topic", windows, lambda _: None).run()

    async def test() -> None:
        task = asyncio.ensure_future(consume())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])

    run(test())
    assert driver.ends == ends


def test_who_is_cancelled_while_a_node_is_gone_ends_as_cancelled() -> None:
    assert cancelled(lambda: patiently(is_away), 1.0)


def test_who_is_cancelled_while_a_client_ends_ends_as_cancelled() -> None:
    assert cancelled(lambda: quietly(never()), 0.5)


def test_a_client_that_does_not_end_or_whose_task_was_cancelled_is_left_alone() -> None:
    async def test() -> None:
        assert not await quietly(never())
        part = asyncio.ensure_future(never())
        part.cancel()
        assert not await quietly(part)
        assert await quietly(asyncio.sleep(0.0))

    run(test())


def test_a_member_of_a_group_that_is_to_end_ends_though_kafka_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_consumer, "AIOKafkaConsumer", Away)
    news: list[GroupNews] = []

    async def consume() -> None:
        windows = GroupWindows(GroupRoom(1 << 20))
        await GroupConsumer(LINK, None, "$share/g/t", "topic", windows, news.append).run()

    assert cancelled(consume, 1.0)


@pytest.mark.parametrize("after_s", [0.1, 0.6, 1.0], ids=["ending", "waiting", "connecting"])
def test_who_follows_which_groups_there_are_ends_though_kafka_is_away(
    after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_tail, "AIOKafkaConsumer", Away)

    async def follow() -> None:
        tail = GroupTail(LINK, "topic", GroupRoster("g"), lambda _: None)
        tail._consumer = Away()
        await tail._follow()

    assert cancelled(follow, after_s)


class Leaderless:
    """One of the driver's consumers that has partitions, one of them without a leader."""

    _coordinator = SimpleNamespace(generation=1, member_id="m")

    def __init__(self, end_offsets: Callable[..., Awaitable[None]]) -> None:
        self.end_offsets = end_offsets

    async def beginning_offsets(self, _: object) -> dict[object, int]:
        return {}


@pytest.mark.parametrize("end_offsets", [is_away, lambda _: never()], ids=["refused", "silent"])
def test_a_partition_without_a_leader_is_said_and_does_not_stop_the_group_silently(
    end_offsets: Callable[..., Awaitable[None]],
) -> None:
    async def nothing(*_: object) -> dict[object, object]:
        return {}

    async def test() -> None:
        admin: Any = SimpleNamespace(list_consumer_group_offsets=nothing)
        windows = GroupWindows(GroupRoom(1 << 20))
        consumer = GroupConsumer(LINK, admin, "$share/g/t", "topic", windows, lambda _: None)
        consumer._consumer = Leaderless(end_offsets)

        async def topic_id() -> bytes:
            return bytes(16)

        consumer._topic_id = topic_id  # type: ignore[method-assign]
        asked: Any = [SimpleNamespace(partition=0)]
        async with asyncio.timeout(100.0):
            await consumer.on_partitions_assigned(asked)
        assert isinstance(consumer._trouble, (KafkaConnectionError, TimeoutError))

    run(test())
