"""`RedisStore`: the store contract on one Redis server, for one broker at a time."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import structlog

from flowguard.config import MIB, Settings
from flowguard.errors import ConfigError, DataLostError, StallError, StoreError
from flowguard.flow.signals import StoreState
from flowguard.records import QueueEntry, SessionRecord, StoreOp
from flowguard.stores.base import FETCH_BYTES, NOT_FENCED, POS_MAX, Fenced, StoreLoad
from flowguard.stores.redis.changes import CommitChanges, OwnedSession, session_record
from flowguard.stores.redis.functions import ADOPT, REFUSED_FENCED
from flowguard.stores.redis.keys import BUCKETS, KeyNames, bucket_of
from flowguard.stores.redis.lease import Lease
from flowguard.stores.redis.link import RedisLink
from flowguard.stores.redis.queues import LAYOUTS
from flowguard.stores.redis.server import (
    INFO_MEMORY,
    check_format,
    check_server,
    info,
    promise_of,
    values_of,
)
from flowguard.stores.redis.values import decode_retained
from flowguard.types import Publish

log = structlog.get_logger()

PAGE: Final = 256
"""Sessions, buckets or topics that are asked for together."""
FIRST_ENTRIES: Final = 32
"""Entries that are asked for before it is known how large they are."""
WAIT_SHARE: Final = 0.6
"""Of the time-out, that replicas have for confirming a commit."""
KEPT_BYTES: Final = 8 * MIB
"""Confirmed commits that are kept, for a server that comes back without them: within what
`flowguard.bounds.PROCESS_BYTES` has for RocksDB, which is not there."""
WORD_BYTES: Final = 50
"""Memory of a word of a kept commit, besides its bytes."""
RESERVE_SHARE: Final = 8
"""Of `maxmemory`, at most one part in so many is kept in reserve."""


@dataclass(slots=True)
class _Commit:
    """A commit as it is sent; until Redis has confirmed it nothing overtakes it."""

    ops: Sequence[StoreOp]
    number: int
    changes: CommitChanges
    keys: list[bytes]
    words: list[bytes | int]
    size_bytes: int


@final
class RedisStore:
    """One prefix of one server. Call everything but `load` from one thread at a time.

    Where `commit` raises `StallError`, nobody knows whether Redis has done it: the same batch goes
    first, whatever is committed next, and Redis does it once.
    """

    immediate: bool = False
    on_disk: bool = True

    def __init__(
        self,
        settings: Settings,
        *,
        token: str,
        name: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take the prefix of the settings over, with all sessions that are there.

        `token`: a name that no other owner ever had; `name`: one for people; `clock`: seconds that
        never go back. Raises `ConfigError` where the server cannot keep the promise, `LockedError`,
        `FormatError` and other `StoreError`.
        """
        self._settings = settings.redis
        self._reserve_bytes = settings.store.disk_reserve_bytes
        self._promise = promise_of(settings.store.durability, settings.redis.replicas)
        self.durability = self._promise.durability
        self._token = token
        self._clock = clock
        self._queues = LAYOUTS[self._settings.layout]
        self._names = KeyNames(self._settings.prefix)
        self._link = RedisLink(self._settings.url, self._settings.timeout_s, self._greet)
        self._is_open = False
        self._number = 0
        """Of the last commit."""
        self._unconfirmed: _Commit | None = None
        self._owned: dict[str, OwnedSession] = {}
        self._kept: deque[_Commit] = deque()
        """The last commits, in case that Redis loses them."""
        self._kept_bytes = 0
        self._state = StoreState.FLOWING
        self._used_bytes = 0
        self._free_bytes: int | None = None
        self._max_bytes = 0
        self._lease = Lease(self._link, self._names, token, name, self._settings.lease_s)
        try:
            self._lease.claim(sleep, takeover=self._settings.takeover)
            self._adopt()
            self._look(info(self._link, "memory"))
        except StallError as error:
            self._link.close()
            raise StoreError(f"{error}. Is it running, and not overloaded?") from error
        except BaseException:
            self._link.close()
            raise
        self._is_open = True

    def _greet(self, link: RedisLink) -> None:
        """Check a server that is new to us; one that was good enough once may become so again."""
        try:
            check_server(link, self._promise)
            settings = self._settings
            check_format(link, self._names, settings.prefix, settings.layout)
            if self._is_open:
                self._write_again(link)
        except ConfigError as error:
            if self._is_open:
                raise StallError(str(error)) from error
            raise

    def _write_again(self, link: RedisLink) -> None:
        """A server that came back, or another in its place, may lack the end of what it had
        confirmed: it gets that again, as far as it is kept; raises `DataLostError` if it is not."""
        (found,) = link.ask([(b"HMGET", self._names.meta, b"token", b"last")])
        token, last = found
        if token is not None and token.decode() != self._token:
            return  # It is another's: the lease will say whose.
        there = 0 if last is None else int(last)
        if there >= self._number:
            return
        first = self._kept[0].number if self._kept else self._number + 1
        if token is None or first > there + 1:
            raise DataLostError(
                f"{link.where} has lost what it had confirmed: it is at commit {there} of "
                f"{self._number}, and those from {first} on are kept here. What is there is what "
                "the next start finds"
            )
        again = [commit for commit in self._kept if commit.number > there]
        for commit in again:
            link.call(self._queues.commit, commit.keys, (self._token, commit.number, *commit.words))
        log.warning("Redis had lost what it had confirmed: written again", commits=len(again))

    def _keep(self, commit: "_Commit") -> None:
        """For a server that comes back without it; as much as fits."""
        self._kept.append(commit)
        self._kept_bytes += commit.size_bytes
        while self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft().size_bytes

    def _adopt(self) -> None:
        """Become the owner of everything below the prefix: from here on all others are fenced."""
        names = self._names
        for first in range(0, BUCKETS, PAGE):
            buckets = range(first, min(first + PAGE, BUCKETS))
            answers = self._link.ask(
                [
                    (b"FCALL", ADOPT, 2, *names.bucket(number)[:2], self._token, start)
                    for number in buckets
                    for start in (names.bucket_start(number),)
                ]
            )
            for found in answers:
                for at in range(0, len(found), 3):
                    client_id, next_pos, sent_pos = found[at : at + 3]
                    owned = OwnedSession(int(next_pos or 1), int(sent_pos or 0))
                    self._owned[client_id.decode()] = owned

    # --- writing ------------------------------------------------------------------------------

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        """Commit, as `Store.commit`; after a `StallError` the same batch comes first."""
        fenced = NOT_FENCED
        unconfirmed = self._unconfirmed
        if unconfirmed is not None and unconfirmed.ops is not ops:
            fenced = self._send(unconfirmed)
            unconfirmed = None
        if unconfirmed is None:
            unconfirmed = self._prepare(ops)
        if not unconfirmed.words:
            return fenced
        self._unconfirmed = unconfirmed
        return fenced | self._send(unconfirmed)

    def _prepare(self, ops: Sequence[StoreOp]) -> _Commit:
        changes = CommitChanges(self._owned, ops)
        keys, words = changes.parts(self._names)
        size_bytes = WORD_BYTES * (len(keys) + len(words)) + sum(map(len, keys))
        size_bytes += sum([len(word) for word in words if isinstance(word, bytes)])
        return _Commit(ops, self._number + 1, changes, keys, words, size_bytes)

    def _send(self, unconfirmed: _Commit) -> Fenced:
        promise = self._promise
        then: list[tuple[bytes | str | int, ...]] = []
        now_s = self._clock()
        renews = self._lease.is_due(now_s)
        if renews:  # Under load nobody calls `maintain`.
            then += (self._lease.renewal(now_s), INFO_MEMORY)
        if promise.replicas:
            wait_ms = round(1_000 * WAIT_SHARE * self._settings.timeout_s)
            then.append((b"WAIT", promise.replicas, wait_ms))
        words = (self._token, unconfirmed.number, *unconfirmed.words)
        try:
            answers = self._link.call(self._queues.commit, unconfirmed.keys, words, *then)
            self._check_replicas(answers[-1])
        except StallError:
            self._state = StoreState.STOPPED
            raise
        if renews:
            self._seen(*answers[1:3])
        fenced = self._confirmed(unconfirmed, answers[0])
        self._state = StoreState.FLOWING
        return fenced

    def _check_replicas(self, confirmed: Any) -> None:
        if self._promise.replicas and confirmed < self._promise.replicas:
            raise StallError(
                f"{self._link.where}: {confirmed} of {self._promise.replicas} replicas have "
                "confirmed the commit"
            )

    def _confirmed(self, unconfirmed: _Commit, refused: list[int]) -> Fenced:
        """The commit is done: what Redis has now is what we own."""
        self._unconfirmed = None
        self._keep(unconfirmed)
        number = self._number = unconfirmed.number
        reasons = dict(zip(refused[::3], refused[1::3], strict=True))
        if reasons:
            self._check_lease()
        fenced: set[str] = set()
        for part, (client_id, change) in enumerate(unconfirmed.changes.sessions.items()):
            reason = reasons.pop(part, None)
            if reason == REFUSED_FENCED:
                fenced.add(client_id)
                self._owned.pop(client_id, None)
            elif reason is not None:
                raise StoreError(
                    f"{self._link.where} has lost what it had confirmed of session {client_id!r}"
                )
            elif change.is_there:
                self._owned[client_id] = OwnedSession(change.next_pos, change.sent_pos, number)
            else:
                self._owned.pop(client_id, None)
        if reasons:
            raise StoreError(f"{self._link.where} has lost who owns its retained messages")
        return frozenset(fenced) if fenced else NOT_FENCED

    def _check_lease(self) -> None:
        """Raise `LockedError` where all is somebody else's, not only a session or two."""
        (answer,) = self._link.ask([self._lease.renewal(self._clock())])
        self._lease.check(answer)

    def maintain(self) -> bool:
        """Renew the lease and look at the server's memory, when it is time."""
        now_s = self._clock()
        if not self._lease.is_due(now_s):
            return False
        try:
            seen = self._link.ask([self._lease.renewal(now_s), INFO_MEMORY])
        except StallError:
            self._state = StoreState.STOPPED
            return False
        self._seen(*seen)
        if self._unconfirmed is None:
            self._state = StoreState.FLOWING
        return False

    def _seen(self, renewed: Any, memory: bytes) -> None:
        """The answers to a renewal of the lease and to INFO_MEMORY."""
        self._lease.check(renewed)
        self._look(values_of(memory))

    def _look(self, facts: dict[str, str]) -> None:
        self._used_bytes = int(facts.get("used_memory", "0"))
        self._max_bytes = int(facts.get("maxmemory", "0"))
        left_bytes = max(self._max_bytes - self._used_bytes, 0)
        self._free_bytes = left_bytes if self._max_bytes else None

    # --- reading ------------------------------------------------------------------------------

    def sessions(self) -> Iterator[SessionRecord]:
        names = sorted(self._owned)
        for first in range(0, len(names), PAGE):
            page = names[first : first + PAGE]
            commands: list[tuple[bytes, bytes]] = []
            for client_id in page:
                session, queue, released = self._names.session(client_id.encode())
                commands += (
                    (b"HGETALL", session),
                    (self._queues.count, queue),
                    (b"HLEN", released),
                )
            answers = self._link.ask(commands)
            for index, client_id in enumerate(page):
                flat, waiting, released_count = answers[3 * index : 3 * index + 3]
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                yield session_record(client_id, fields, waiting, released_count)

    def retained(self) -> Iterator[tuple[Publish, float]]:
        topics: list[bytes] = []
        for first in range(0, BUCKETS, PAGE):
            buckets = range(first, min(first + PAGE, BUCKETS))
            keys = [self._names.bucket(number)[2] for number in buckets]
            for found in self._link.ask([(b"HKEYS", key) for key in keys]):
                topics += found
        topics.sort()
        for first in range(0, len(topics), PAGE):
            page = topics[first : first + PAGE]
            keys = [self._names.bucket(bucket_of(topic))[2] for topic in page]
            commands = [(b"HGET", key, topic) for key, topic in zip(keys, page, strict=True)]
            for value in self._link.ask(commands):
                yield decode_retained(value)

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        owned = self._owned.get(client_id)
        if owned is None:
            return []
        last_pos = min(until_pos, owned.next_pos - 1)
        found: list[QueueEntry] = []
        size_bytes = 0
        count = min(limit, FIRST_ENTRIES)
        while after_pos < last_pos and len(found) < limit and size_bytes < bytes_max:
            page, flat = self._queues.read(
                self._link.ask, self._names, client_id.encode(), after_pos, last_pos, count
            )
            covered_pos = page[-1].pos if len(page) == count else last_pos
            for pos, packet_id in zip(map(int, flat[::2]), map(int, flat[1::2]), strict=True):
                if after_pos < pos <= covered_pos:
                    page.append(QueueEntry(pos, packet_id, None))
            page.sort(key=lambda entry: entry.pos)
            for entry in page:
                if len(found) == limit or size_bytes >= bytes_max:
                    break
                found.append(entry)
                size_bytes += 0 if entry.delivery is None else entry.delivery.size_bytes
            after_pos = covered_pos
            average_bytes = max(size_bytes // max(len(found), 1), 1)
            more = min((bytes_max - size_bytes) // average_bytes + 1, PAGE)
            count = max(1, min(limit - len(found), more))
        return found

    def load(self) -> StoreLoad:
        reserve_bytes = min(self._reserve_bytes, self._max_bytes // RESERVE_SHARE)
        free_bytes = self._free_bytes
        is_full = free_bytes is not None and free_bytes < reserve_bytes
        return StoreLoad(self._state, self._used_bytes, free_bytes, is_full)

    # --- the whole ----------------------------------------------------------------------------

    def backup(self, folder: Path) -> None:
        raise StoreError(
            f"{self._link.where} is backed up by its own means: BGSAVE there, and copy its files"
        )

    def close(self) -> None:
        """Give up the lease, so that the next broker need not wait for its end."""
        if self._is_open:
            self._is_open = False
            with suppress(StoreError):
                self._lease.leave()
            self._link.close()
