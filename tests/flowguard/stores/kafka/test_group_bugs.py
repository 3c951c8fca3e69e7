"""A task of a group that ends by a bug: it is said, and the group goes on; no server."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from flowguard.stores.group_feed import GroupTrouble, Trouble
from flowguard.stores.kafka.groups import groups
from flowguard.stores.kafka.groups import tail as group_tail
from flowguard.stores.kafka.groups.capacity import GroupRoom
from flowguard.stores.kafka.groups.consumer import GroupConsumer
from flowguard.stores.kafka.groups.groups import Groups
from flowguard.stores.kafka.groups.roster import (
    GroupRoster,
    GroupTopic,
    encode_claim,
    group_topic,
)
from flowguard.stores.kafka.groups.tail import GroupTail
from flowguard.stores.kafka.groups.window import GroupWindows
from flowguard.stores.kafka.topics import KafkaPlace
from tests.support.virtual_loop import run

FILTER = "$share/g/t"
PLACE = KafkaPlace("somewhere", replicas=1, groups_prefix="g")
TOPIC = GroupTopic(group_topic("g", FILTER, 1), 1)


class Broken:
    """A consumer of which everything has a bug, but for the second one of a test."""

    runs_count = 0

    def __init__(self, *_: object) -> None:
        self.filter = FILTER
        self.windows = SimpleNamespace(unsaved_count=0, lost_count=0)
        self.is_topic_doubtful = self.is_committing = False
        self.said: list[tuple[Trouble, str]] = []

    async def run(self) -> None:
        type(self).runs_count += 1
        if self.runs_count == 1:
            raise KeyError("bug")
        await asyncio.Event().wait()

    async def commit(self) -> None:
        raise KeyError("bug")

    def say(self, trouble: Trouble, why: str) -> None:
        self.said.append((trouble, why))


async def never(*_: object) -> None:
    await asyncio.Event().wait()


def new_link() -> Any:
    return SimpleNamespace(
        options={}, servers="somewhere", task=asyncio.ensure_future, look_at=never
    )


def new_groups() -> Groups:
    """With one group that is to be read."""
    found = Groups(new_link(), PLACE, "a", lambda: 1.0)
    found._roster.apply(*encode_claim("a", FILTER, TOPIC))
    found._claims._there.add(TOPIC.topic)
    found.want(FILTER, True)
    return found


def test_a_group_that_is_not_read_any_more_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GroupConsumer", Broken)
    monkeypatch.setattr(Broken, "runs_count", 0)

    async def test() -> None:
        found = new_groups()
        for _ in range(3):
            await found._tick()
            await asyncio.sleep(1.0)
        assert Broken.runs_count == 2
        (said,) = found.take_news()
        assert isinstance(said, GroupTrouble)
        assert said.filter == FILTER
        assert said.trouble is Trouble.READING
        assert "KeyError('bug')" in said.why

    run(test())


def test_a_commit_that_has_a_bug_is_said() -> None:
    async def test() -> None:
        found, consumer = new_groups(), Broken()
        broken: Any = consumer
        found._begin(broken)
        await asyncio.sleep(1.0)
        ((trouble, why),) = consumer.said
        assert trouble is Trouble.COMMITS
        assert "KeyError('bug')" in why
        assert not found._commits

    run(test())


class Tailed:
    """The driver's consumer of the topic of groups, with one record."""

    def __init__(self, **_: object) -> None:
        self.next_offset = 0

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def assign(self, _: object) -> None:
        return

    def seek(self, _: object, offset: int) -> None:
        self.next_offset = offset

    async def end_offsets(self, places: list[object]) -> dict[object, int]:
        return dict.fromkeys(places, 0)

    async def getmany(self, **_: object) -> dict[object, list[object]]:
        await asyncio.sleep(1.0)
        if self.next_offset:
            return {}
        self.next_offset = 1
        key, value = encode_claim("a", FILTER, TOPIC)
        return {("g.groups", 0): [SimpleNamespace(offset=0, key=key, value=value)]}

    async def position(self, _: object) -> int:
        return self.next_offset


def test_which_groups_there_are_is_followed_on_behind_a_record_that_shows_a_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_tail, "AIOKafkaConsumer", Tailed)

    def on_change(_: object) -> None:
        raise KeyError("bug")

    async def test() -> None:
        link = new_link()

        async def look_at(_: str) -> None:
            return

        link.look_at = look_at
        tail = GroupTail(link, "g.groups", GroupRoster("g"), on_change)
        await tail.start()
        await asyncio.sleep(3.0)
        tail.go_on()
        assert "KeyError('bug')" in tail.trouble
        await asyncio.sleep(5.0)
        assert not tail.trouble
        await asyncio.wait_for(tail.passed(0), 1.0)
        await tail.stop()

    run(test())


@pytest.mark.parametrize("callback", ["on_partitions_assigned", "on_partitions_revoked"])
def test_a_bug_while_partitions_are_given_out_is_not_hidden_by_the_driver(callback: str) -> None:
    async def test() -> None:
        def tell(_: object) -> None:
            raise KeyError("bug")

        windows = GroupWindows(GroupRoom(1 << 20))
        consumer = GroupConsumer(new_link(), None, FILTER, "topic", windows, tell)
        consumer._is_ours = callback == "on_partitions_revoked"
        consumer._consumer = SimpleNamespace(
            _coordinator=SimpleNamespace(generation=1, member_id="m")
        )

        async def topic_id() -> bytes:
            raise KeyError("bug")

        consumer._topic_id = topic_id  # type: ignore[method-assign]
        await getattr(consumer, callback)([])
        assert isinstance(consumer._trouble, KeyError)
        assert not consumer._is_ours

    run(test())
