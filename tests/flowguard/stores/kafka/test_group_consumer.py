"""A broker's member of a consumer group: what it says when something is wrong; no server."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiokafka", reason="aiokafka is missing: pip install 'flowguard-mqtt[kafka]'")

from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    KafkaError,
    NotCoordinatorForGroupError,
)

from flowguard.records import NEVER_S, Delivery
from flowguard.stores.group_feed import GroupCame, GroupNews, GroupTrouble, Trouble
from flowguard.stores.kafka.groups import consumer as group_consumer
from flowguard.stores.kafka.groups import window as group_window
from flowguard.stores.kafka.groups.capacity import GroupRoom
from flowguard.stores.kafka.groups.consumer import REFUSED_S, GroupConsumer
from flowguard.stores.kafka.groups.record import encode_group_record
from flowguard.stores.kafka.groups.window import Found, GroupWindows, RecordId
from flowguard.stores.kafka.window import AckWindow
from flowguard.types import Publish

FILTER, TOPIC = "$share/g/t", "groups.group.x.1"
TOPIC_ID = bytes(16)
PARTITIONS = 2


class Place(NamedTuple):
    topic: str
    partition: int


@dataclass
class Record:
    offset: int
    value: bytes | None


class Driver:
    """The consumer and the admin of the driver, as far as they are asked here."""

    def __init__(self) -> None:
        self.error: type[KafkaError] | None = None
        self.found: dict[Place, list[Record]] = {}
        self.paused: set[Place] = set()
        self.coordinators_count = 0
        """How often it was asked which node that is."""

    async def find_coordinator(self, _: str) -> int:
        self.coordinators_count += 1
        return 1

    async def _send_request(self, _: object, __: int) -> Any:
        code = 0 if self.error is None else self.error.errno
        return SimpleNamespace(topics=[(TOPIC, [(0, code)])])

    async def getmany(self, **_: object) -> dict[Place, list[Record]]:
        found, self.found = self.found, {}
        return {place: some for place, some in found.items() if place not in self.paused}

    def pause(self, place: Place) -> None:
        self.paused.add(place)

    def resume(self, place: Place) -> None:
        self.paused.discard(place)

    def assignment(self) -> list[Place]:
        return [Place(TOPIC, each) for each in range(PARTITIONS)]


class Bench:
    """A consumer that has all partitions; `now_s` of its loop is what the test says."""

    def __init__(self) -> None:
        self.news: list[GroupNews] = []
        self.driver = Driver()
        self.windows = GroupWindows(GroupRoom(1 << 30))
        self.windows.of_topic(TOPIC_ID)
        found = {each: Found(AckWindow(), 0, 0) for each in range(PARTITIONS)}
        self.windows.assigned(found)
        link: Any = SimpleNamespace(options={}, servers="somewhere")
        self.consumer = GroupConsumer(
            link, self.driver, FILTER, TOPIC, self.windows, self.news.append
        )
        self.consumer._consumer = self.driver
        self.consumer._is_ours = True
        self.consumer._look_due_s = float("inf")

    def troubles(self) -> list[tuple[Trouble, str]]:
        """Return the troubles reported since the last call."""
        found = [(each.trouble, each.why) for each in self.news if isinstance(each, GroupTrouble)]
        self.news.clear()
        return found

    def came(self) -> list[bytes]:
        return [
            delivery.message.payload
            for each in self.news
            if isinstance(each, GroupCame)
            for _, delivery in each.messages
        ]

    async def read(self, partition: int, *values: bytes | None, first: int = 0) -> None:
        records = [Record(first + index, value) for index, value in enumerate(values)]
        self.driver.found = {Place(TOPIC, partition): records}
        await self.consumer._read()

    async def change_and_commit(self) -> None:
        """Settle and commit one message; the caller retries if it is rejected."""
        part = self.windows._parts[0]
        part.unsaved_count += 1
        try:
            await self.consumer.commit()
        except KafkaError:
            return


def record(number: int, version: int = 1) -> bytes:
    delivery = Delivery(Publish("t", b"%d" % number, 1), 1, False, (), NEVER_S)
    value = encode_group_record(RecordId(b"writer 1", number), delivery)
    return bytes([version]) + value[1:]


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        await test(Bench())

    asyncio.run(begin())


def test_a_denied_commit_is_said_once_and_once_when_it_is_allowed_again() -> None:
    async def test(bench: Bench) -> None:
        await bench.change_and_commit()
        assert bench.troubles() == [(Trouble.COMMITS, "")]
        bench.driver.error = GroupAuthorizationFailedError
        await bench.change_and_commit()
        await bench.change_and_commit()
        ((trouble, why),) = bench.troubles()
        assert trouble is Trouble.COMMITS
        assert "somewhere denies it" in why
        assert bench.windows.unsaved_count  # It is tried again.
        bench.driver.error = None
        await bench.change_and_commit()
        await bench.change_and_commit()
        assert bench.troubles() == [(Trouble.COMMITS, "")]
        assert not bench.windows.unsaved_count

    run(test)


def test_the_node_that_takes_commits_is_asked_for_once_and_after_an_error() -> None:
    async def test(bench: Bench) -> None:
        await bench.change_and_commit()
        await bench.change_and_commit()
        assert bench.driver.coordinators_count == 1
        bench.driver.error = NotCoordinatorForGroupError
        await bench.change_and_commit()
        bench.driver.error = None
        await bench.change_and_commit()
        assert bench.driver.coordinators_count == 2

    run(test)


@pytest.mark.parametrize("error", [IllegalGenerationError, NotCoordinatorForGroupError])
def test_what_passes_by_itself_is_said_when_it_does_not(
    error: type[KafkaError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        clock = SimpleNamespace(now_s=100.0)
        loop = SimpleNamespace(time=lambda: clock.now_s)
        monkeypatch.setattr(group_consumer.asyncio, "get_running_loop", lambda: loop)
        bench.driver.error = error
        await bench.change_and_commit()
        clock.now_s += REFUSED_S / 2
        await bench.change_and_commit()
        assert not bench.troubles()
        clock.now_s += REFUSED_S
        for _ in range(3):
            await bench.change_and_commit()
        ((trouble, why),) = bench.troubles()
        assert trouble is Trouble.COMMITS
        assert error.__name__ in why

    run(test)


def test_a_damaged_record_is_said_and_counted_and_the_others_are_handed_out() -> None:
    async def test(bench: Bench) -> None:
        await bench.read(0, record(1), record(2)[:12], None, record(4))
        assert bench.came() == [b"1", b"4"]
        said = [why for trouble, why in bench.troubles() if trouble is Trouble.RECORD]
        assert [why.partition(": ")[0] for why in said] == [
            f"partition 0 of {TOPIC}, offset 1",
            f"partition 0 of {TOPIC}, offset 2",
        ]
        assert bench.windows.lost_count == 2
        assert bench.windows.share.count == 2

    run(test)


def test_a_record_of_a_later_version_holds_its_partition_and_no_other_and_nothing_is_lost() -> None:
    async def test(bench: Bench) -> None:
        await bench.read(0, record(1), record(2, version=2), record(3))
        assert bench.came() == [b"1"]
        ((_, why),) = [each for each in bench.troubles() if each[0] is Trouble.HELD]
        assert f"partition 0 of {TOPIC} from offset 1 on" in why
        assert "version 2" in why
        assert bench.driver.paused == {Place(TOPIC, 0)}
        await bench.read(1, record(4))
        assert bench.came() == [b"4"]
        assert bench.windows.next_offset(0) == 1
        assert not bench.windows.lost_count
        # A later flowguard reads it.
        bench.driver.paused.clear()
        bench.troubles()
        await bench.read(0, record(2), record(3), first=1)
        assert bench.came() == [b"2", b"3"]
        assert (Trouble.HELD, "") in bench.troubles()

    run(test)


def test_no_more_is_read_than_there_is_room_for() -> None:
    async def test(bench: Bench) -> None:
        asked: list[object] = []

        async def getmany(**words: object) -> dict[Place, list[Record]]:
            asked.append(words["max_records"])
            return {}

        bench.driver.getmany = getmany  # type: ignore[method-assign]
        room = GroupRoom(1 << 20)
        bench.consumer.windows = bench.windows = GroupWindows(room)
        bench.windows.of_topic(TOPIC_ID)
        bench.windows.assigned({0: Found(AckWindow(), 0, 0)})
        bench.consumer._largest_bytes = 1 << 16
        await bench.consumer._read()
        bench.consumer._is_idle = False
        await bench.consumer._read()
        # First whether there is any; then three quarters of the budget, while no other group has
        # any.
        assert asked == [1, 12]
        assert not room.messages.used_bytes

    run(test)


def test_a_partition_is_read_no_further_than_so_far_beyond_what_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_window, "AHEAD_MAX", 3)

    async def test(bench: Bench) -> None:
        await bench.read(0, record(1), record(2), record(3))
        (first, *others) = [
            pos for each in bench.news if isinstance(each, GroupCame) for pos, _ in each.messages
        ]
        for pos in others:
            bench.windows.settle(pos)
        await bench.read(0, record(4), first=3)
        assert bench.driver.paused == {Place(TOPIC, 0)}
        assert bench.came() == [b"1", b"2", b"3"]
        bench.windows.settle(first)
        await bench.read(0, record(4), first=3)
        assert not bench.driver.paused
        assert bench.came() == [b"1", b"2", b"3", b"4"]

    run(test)
