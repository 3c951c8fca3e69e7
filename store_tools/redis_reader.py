"""RedisReader: reads the store below a prefix, without a lease and without changes.

A broker may use the store meanwhile. Sessions are read one after the other, each in its present
state.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from flowguard.errors import CorruptionError, FormatError
from flowguard.records import SessionRecord
from flowguard.stores.base import POS_MAX
from flowguard.stores.redis.changes import session_questions, session_record
from flowguard.stores.redis.connection.cluster import RedisCluster, is_cluster
from flowguard.stores.redis.connection.link import RedisLink
from flowguard.stores.redis.connection.sentinel import find_primary, is_sentinel
from flowguard.stores.redis.connection.server import check_version
from flowguard.stores.redis.keys import BUCKETS, KeyNames
from flowguard.stores.redis.queues import LAYOUTS
from flowguard.stores.redis.values import decode_retained

TIMEOUT_S: Final = 30.0
PAGE: Final = 256
ENTRIES: Final = 64


@dataclass(slots=True)
class RedisFindings:
    sessions: int = 0
    entries: int = 0
    retained: int = 0
    problems: list[str] = field(default_factory=list)


def reach(
    url: str, *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> RedisLink | RedisCluster:
    """Return a connection to a server or cluster, for reads. Raises `ConfigError`, `StoreError`."""
    if is_cluster(url):
        return RedisCluster(url, TIMEOUT_S, clock=clock, sleep=sleep)
    find = partial(find_primary, url, TIMEOUT_S) if is_sentinel(url) else None
    return RedisLink(url, TIMEOUT_S, find=find)


@final
class RedisReader:
    """A prefix of a server. Raises `FormatError` if it has no store, and other `StoreError`."""

    def __init__(
        self, url: str, prefix: str, *, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._link = reach(url, clock=clock, sleep=sleep)
        self._names = KeyNames(prefix)
        self.where = f"{prefix}: in {self._link.where}"
        (flat,) = self._link.ask([(b"HGETALL", self._names.meta)])
        texts = [each.decode(errors="replace") for each in flat]
        self.meta = dict(zip(texts[::2], texts[1::2], strict=True))
        """Format and layout; token, name, beat (milliseconds of Unix time, 0 after a regular end)
        and last commit of the broker."""
        if "format" not in self.meta:
            raise FormatError(f"there is no store {self.where}")
        check_version(self.meta["format"], self.where)
        self._queues = LAYOUTS[self.meta.get("layout", "stream")]

    def close(self) -> None:
        self._link.close()

    def client_ids(self) -> list[str]:
        """Return client ids of all sessions and names of shared subscriptions' queues, in order."""
        found: list[str] = []
        for first in range(0, BUCKETS, PAGE):
            keys = [self._names.bucket(number)[1] for number in range(first, first + PAGE)]
            for members in self._link.ask([(b"SMEMBERS", key) for key in keys]):
                found += [member.decode() for member in members]
        return sorted(found)

    def session(self, client_id: str) -> SessionRecord:
        """Return the session or queue of a name of `client_ids`. Raises `CorruptionError`."""
        asked = session_questions(self._names, self._queues, client_id)
        return session_record(client_id, self._link.ask(asked))

    def retained_counts(self) -> Iterator[tuple[int, int]]:
        """Yield the buckets with retained messages, and the number of messages of each."""
        for first in range(0, BUCKETS, PAGE):
            keys = [self._names.bucket(number)[2] for number in range(first, first + PAGE)]
            counts = self._link.ask([(b"HLEN", key) for key in keys])
            yield from ((first + index, count) for index, count in enumerate(counts) if count)

    def verify(self) -> RedisFindings:
        """Read everything, and return the counts and problems."""
        found = RedisFindings()
        for client_id in self.client_ids():
            found.sessions += 1
            try:
                found.entries += self._verify_session(client_id)
            except CorruptionError as error:
                found.problems.append(f"session {client_id!r}: {error}")
        for bucket, _ in self.retained_counts():
            (flat,) = self._link.ask([(b"HGETALL", self._names.bucket(bucket)[2])])
            for topic, value in zip(flat[::2], flat[1::2], strict=True):
                found.retained += 1
                try:
                    if decode_retained(value)[0].topic.encode() != topic:
                        raise CorruptionError("it is another topic's")
                except CorruptionError as error:
                    found.problems.append(f"retained {topic.decode(errors='replace')!r}: {error}")
        return found

    def _verify_session(self, client_id: str) -> int:
        """Check a session, and return its number of entries. Raises `CorruptionError`."""
        record = self.session(client_id)
        count = size_bytes = after_pos = 0
        name = client_id.encode()
        while True:
            entries, flat = self._queues.read(
                self._link.ask, self._names, name, after_pos, POS_MAX, ENTRIES
            )
            for entry in entries:
                if entry.pos >= record.next_pos:
                    raise CorruptionError(f"position {entry.pos} was never given out")
                size_bytes += 0 if entry.delivery is None else entry.delivery.size_bytes
                count += 1
            if not entries:
                break
            after_pos = entries[-1].pos
        positions = flat[::2]
        if any(int(pos) >= record.next_pos for pos in positions):
            raise CorruptionError("a position was released that was never given out")
        if size_bytes != record.unsettled_bytes:
            raise CorruptionError(
                f"its queue has {size_bytes} bytes, and counts {record.unsettled_bytes}"
            )
        return count
