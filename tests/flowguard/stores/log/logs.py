"""A log in memory, and what is done with it."""

import itertools

from flowguard.records import NEVER_S
from flowguard.stores.log.generations import LAYOUTS as LAYOUTS
from flowguard.stores.log.generations import Retention
from flowguard.stores.log.homes import MemoryHome
from flowguard.stores.log.iterators import Ahead, LogIterator, Stream
from flowguard.stores.log.layout import stamp_at
from flowguard.stores.log.logged import LoggedMessage
from flowguard.stores.log.message_log import MessageLog
from flowguard.types import Publish

NOW_S = 1_577_837_800.0
"""Near the beginning of the clock: epochs are counted in 32 bits."""
EPOCH_BITS = 20
"""An epoch of sixteen milliseconds."""
BYTES_MAX = 2**40


class MemoryLog:
    """A log whose clock is set by hand, and which is stored as a store would."""

    def __init__(self, layout: str, *, shards: int = 2, retention: Retention | None = None) -> None:
        self.home = MemoryHome()
        self.stamp = stamp_at(NOW_S)
        self.layout, self.shards, self.retention = layout, shards, retention
        self.reopen()

    def reopen(self) -> None:
        self.log = MessageLog(
            self.home,
            high=self.stamp,
            layout=self.layout,
            shards=self.shards,
            retention=self.retention,
            epoch_bits=EPOCH_BITS,
        )

    def pass_s(self, seconds: float) -> None:
        self.stamp += int(seconds * 1_000) << 16

    def append(self, publisher: str, *topics: str, expires_at_s: float = NEVER_S) -> list[int]:
        """Publish to each topic; the payload says when, and in which order."""
        current = self.log.begin()
        stamps = []
        for topic in topics:
            self.stamp += 1
            stamps.append(self.stamp)
            message = Publish(topic, b"%d" % self.stamp, 1)
            size_bytes = 0
            for key, value in self.log.rows_of(self.stamp, publisher, message, expires_at_s):
                self.home.spaces[current.number].put(key, value)
                size_bytes += len(key) + len(value)
            current = current.with_more(self.stamp, self.stamp, 1, size_bytes)
        for key, value in self.log.learned():
            self.home.spaces[current.number].put(key, value)
        self.log.appended(current)
        self.home.write({current.number: current.encode()})
        self.log.high = self.stamp
        return stamps

    def read(
        self, iterator: LogIterator, count_max: int = 1_000
    ) -> tuple[list[LoggedMessage], LogIterator, Ahead]:
        """Everything from the iterator on, as far as its stream goes now."""
        found: list[LoggedMessage] = []
        for _ in itertools.repeat(None, 100_000):
            page = self.log.next(iterator, count_max, BYTES_MAX)
            assert len(page.messages) <= count_max
            found += page.messages
            iterator = page.iterator
            if page.ahead is not Ahead.MORE:
                return found, iterator, page.ahead
        raise AssertionError("it never ends")

    def replay(self, *filters: str, start: int = 0) -> list[LoggedMessage]:
        """Everything from `start` on: stream by stream, lower generations first."""
        found: list[LoggedMessage] = []
        for stream in self.log.get_streams(start):
            found += self.read(self.log.make_iterator(stream, filters, start))[0]
        return found

    def iterators(self, *filters: str) -> dict[Stream, LogIterator]:
        return {
            stream: self.log.make_iterator(stream, filters) for stream in self.log.get_streams()
        }


def stamps(messages: list[LoggedMessage]) -> list[int]:
    return [each.stamp for each in messages]
