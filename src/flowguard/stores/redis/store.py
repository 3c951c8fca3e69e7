"""`RedisStore`: the store contract on Redis, a server or a cluster, for one broker at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import structlog

from flowguard.config import Settings
from flowguard.errors import ConfigError, DataLostError, StallError, StoreError
from flowguard.flow.load.signals import StoreState
from flowguard.records import QueueEntry, SessionRecord, StoreOp
from flowguard.stores.base import FETCH_BYTES, NOT_FENCED, POS_MAX, Fenced, StoreLoad
from flowguard.stores.clock import StoreClock
from flowguard.stores.redis.changes import (
    CommitChanges,
    OwnedSession,
    session_questions,
    session_record,
)
from flowguard.stores.redis.connection.cluster import RedisCluster, is_cluster
from flowguard.stores.redis.connection.link import Call, RedisLink, values_of
from flowguard.stores.redis.connection.opening import open_link
from flowguard.stores.redis.connection.packing import Words
from flowguard.stores.redis.connection.server import (
    check_format,
    check_primary,
    check_server,
    end_torn_commit,
    promise_of,
    run_ids,
)
from flowguard.stores.redis.intent import Intent, decode_intent
from flowguard.stores.redis.kept import Commit, KeptCommits
from flowguard.stores.redis.keys import BUCKETS, KeyNames, bucket_of
from flowguard.stores.redis.lease import Lease
from flowguard.stores.redis.lua.functions import ADOPT, INTEND, REFUSED_FENCED, WHOLE
from flowguard.stores.redis.queues import LAYOUTS
from flowguard.stores.redis.values import decode_retained
from flowguard.types import Publish

log = structlog.get_logger()

PAGE: Final = 256
"""Number of sessions, buckets or topics per request."""
FIRST_ENTRIES: Final = 32
"""Number of entries in the first read, before their size is known."""
WAIT_SHARE: Final = 0.6
"""Fraction of the time-out in which replicas must confirm a commit."""
START_S: Final = 10.0
"""Time in which replicas must have all data when a broker starts."""
START_PAUSE_S: Final = 0.05
RESERVE_SHARE: Final = 8
"""Divisor of `maxmemory`: the upper limit of the memory reserve."""


@final
class RedisStore:
    """One prefix of a server or a cluster. Call everything but `load` from one thread at a time.

    If `commit` raises `StallError`, it is unknown whether Redis has executed the batch. The next
    call sends the same batch first, and Redis executes it once.
    """

    immediate: bool = False
    on_disk: bool = True
    upkeep_ticks: int = 1  # It has a lease to renew.

    def __init__(
        self,
        settings: Settings,
        *,
        token: str,
        name: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        keeps_time: bool = False,
        on_wait: Callable[[str, bool], None] | None = None,
    ) -> None:
        """Take over the configured prefix with all its sessions.

        `token` is a unique name of this owner, `name` one for people. `clock` returns monotonic
        seconds; with `keeps_time` the clock of stored data goes on between two owners. `on_wait` is
        called ten times a second with the broker that this one waits for. Raises `ConfigError` if
        the server cannot provide the durability, `LockedError`, `FormatError` and other
        `StoreError`.
        """
        self._settings = settings.redis
        self._reserve_bytes = settings.store.disk_reserve_bytes
        self._promise = promise_of(settings.store.durability, settings.redis.replicas)
        self.durability = self._promise.durability
        self._token = token
        self._clock = clock
        self._sleep = sleep
        self._queues = LAYOUTS[self._settings.layout]
        self._names = KeyNames(self._settings.prefix)
        self._timeout_s = self._settings.timeout_s
        if is_cluster(self._settings.url):
            # While one primary is silent, the lease on another one must still be renewed.
            self._timeout_s = min(self._timeout_s, self._settings.lease_s / 2)
        self._wait_ms = round(1_000 * WAIT_SHARE * self._timeout_s)
        self.lease_s: float | None = self._settings.lease_s
        self._is_open = self._is_adopting = False
        self._number = 0
        """Number of the last commit."""
        self._unconfirmed: Commit | None = None
        self._owned: dict[str, OwnedSession] = {}
        self._kept = KeptCommits()
        self._state = StoreState.FLOWING
        self._used_bytes = 0
        self._free_bytes: int | None = None
        self._max_bytes = 0
        try:
            self._link = self._connect()
        except StallError as error:
            raise StoreError(f"{error}. Is it running?") from error
        self._lease = Lease(self._link, self._names, token, name, self._settings.lease_s)
        try:
            if isinstance(self._link, RedisCluster):
                self._check_format(self._link, self._link.primaries)
            takeover = self._settings.takeover
            self._lease.claim(sleep, self._prepare_servers, takeover=takeover, on_wait=on_wait)
            self._is_adopting = True
            if isinstance(self._link, RedisCluster):
                self._finish(self._link)
            self._adopt()
            self._confirm_all()
            self._look(self._link.memory())
            self._go_on(keeps_time=keeps_time)
        except StallError as error:
            self._link.close()
            raise StoreError(f"{error}. Is it running, and not overloaded?") from error
        except BaseException:
            self._link.close()
            raise
        self._is_open, self._is_adopting = True, False

    @property
    def incarnation(self) -> int:
        """Number of this owner of the prefix, above those of all owners before."""
        return self._lease.epoch

    def _go_on(self, *, keeps_time: bool) -> None:
        """Make the clock of stored data, which continues from the clock of the last owner. The time
        without an owner is by Redis's clock, since the clocks of two machines may differ."""
        self._time: StoreClock | None = None
        self.clock: Callable[[], float] | None = None
        if keeps_time:
            self._check_lease()
            (stored,) = self._link.ask([(b"HGET", self._names.meta, b"clock")])
            self._time = StoreClock(stored, self._server_s, self._clock)
            self.clock = self._time.now_s

    def _server_s(self) -> float:
        return self._clock() + self._lease.server_ahead_s

    def _connect(self) -> RedisLink | RedisCluster:
        """Reach the server, or the cluster that the address names."""
        url, timeout_s = self._settings.url, self._timeout_s
        return open_link(url, timeout_s, self._greet, clock=self._clock, sleep=self._sleep)

    def _greet(self, link: RedisLink) -> None:
        """Check a new connection. After the start, ConfigError becomes StallError: it may pass."""
        in_cluster = is_cluster(self._settings.url)
        try:
            check_server(link, self._promise, in_cluster=in_cluster)
            if not in_cluster:
                self._check_format(link, [link])
                self._check_adopted(link)
            if self._is_open:
                self._write_again(link)
        except ConfigError as error:
            if self._is_open:
                raise StallError(str(error)) from error
            raise

    def _check_format(self, link: RedisLink | RedisCluster, servers: list[RedisLink]) -> None:
        check_format(link, servers, self._names, self._settings.prefix, self._settings.layout)

    def _prepare_servers(self) -> str:
        """Remove the rest of an incomplete commit, if the last broker was killed and a server has
        restarted since. Return the servers' run ids."""
        link = self._link
        runs = run_ids(link.primaries if isinstance(link, RedisCluster) else [link])
        ((beat, known),) = link.ask([(b"HMGET", self._names.meta, b"beat", b"runs")])
        if beat not in (None, b"0"):
            for run in runs.keys() - set((known or b"").decode().split()):
                end_torn_commit(runs[run], self._sleep)
        return " ".join(sorted(runs))

    def _check_adopted(self, link: RedisLink) -> None:
        """Raises `StoreError` if a fail-over may have lost what was adopted."""
        if self._is_adopting:
            raise StallError(f"{link.where} was lost while sessions were taken over")
        (owners,) = link.ask([(b"HMGET", self._names.meta, b"token", b"adopted")])
        if self._is_open and owners[0] == self._token.encode() != owners[1]:
            raise DataLostError(f"{link.where} has lost who owns its sessions: start again")

    def _write_again(self, link: RedisLink) -> None:
        """Write the last commits again if a restarted server, or its successor, lacks some that
        were confirmed. Raises `DataLostError` if they are not kept."""
        cluster = self._link
        marks = list(self._kept.marks)
        if isinstance(cluster, RedisCluster):
            marks = [mark for mark in marks if cluster.has_key(link, mark)]
        asked: list[Words] = [(b"HMGET", mark, b"token", b"last") for mark in marks]
        *found, replication = link.ask([*asked, (b"INFO", b"replication")])
        # A server that has become a replica since the check is empty until its first full sync.
        check_primary(link, values_of(replication))
        lacking: dict[bytes, int] = {}
        for mark, (token, last) in zip(marks, found, strict=True):
            if token is not None and token.decode() != self._token:
                return  # Another broker is the owner; the lease has its name.
            there = 0 if last is None else int(last)
            if there >= self._kept.marks[mark]:
                continue
            if token is None or not self._kept.reaches(mark, there):
                raise DataLostError(
                    f"{link.where} has lost what it had confirmed: it is at commit {there} of "
                    f"{self._kept.marks[mark]}, and those from "
                    f"{self._kept.first_after(self._number)} on are kept here. The next start "
                    "uses the state of the server"
                )
            lacking[mark] = there
        again = 0
        for number, call in self._kept.after(lacking):
            link.call(self._queues.commit, call.keys, (self._token, number, *call.arguments))
            again += 1
        if again:
            log.warning("redis had lost confirmed commits; written again", commits=again)

    def _adopt(self) -> None:
        """Become the owner of all buckets and sessions, so that all other brokers are fenced."""
        names = self._names
        in_cluster = isinstance(self._link, RedisCluster)
        for first in range(0, BUCKETS, PAGE):
            commands: list[Words] = []
            for number in range(first, min(first + PAGE, BUCKETS)):
                keys: tuple[bytes, ...] = names.bucket(number)[:2]
                if in_cluster:
                    keys += names.mark(number)
                start = names.bucket_start(number)
                words = (self._token, start, self._lease.epoch)
                commands.append((b"FCALL", ADOPT, len(keys), *keys, *words))
            for found in self._link.ask(commands):
                if not isinstance(found, list):
                    self._check_lease()
                    raise StoreError(
                        f"{self._link.where} has buckets of a later broker than its lease knows "
                        "of, after a fail-over that has lost that: start again"
                    )
                for at in range(0, len(found), 3):
                    client_id, next_pos, sent_pos = found[at : at + 3]
                    owned = OwnedSession(next_pos, sent_pos)
                    self._owned[client_id.decode()] = owned
        self._check_lease(b"adopted")

    def _finish(self, cluster: RedisCluster) -> None:
        """Complete the commit over several buckets during which the last owner may have died. This
        changes nothing if it is complete already, or if its sessions have another owner."""
        (value,) = cluster.ask([(b"GET", self._names.intent)])
        if value is None:
            return
        intent = decode_intent(value)
        calls = [(keys, (intent.token, intent.number, *words)) for keys, words in intent.calls]
        try:
            self._commit_at_last(intent.function, calls)
        except StallError as error:
            if "Function not found" not in str(error):
                raise
            raise StoreError(
                f"{cluster.where} has a commit of another version of flowguard that was begun and "
                "may not be done: start and end that version once"
            ) from error

    def _confirm_all(self) -> None:
        """Wait until the replicas have all writes of the last owner, acknowledged or not."""
        if not self._promise.replicas:
            return
        nothing = (self._token, 0, 0)
        calls: list[Call] = [([self._names.meta], nothing)]
        if isinstance(self._link, RedisCluster):
            calls = [(self._names.mark(number), nothing) for number in range(BUCKETS)]
        self._commit_at_last(self._queues.commit, calls)

    def _commit_at_last(self, function: bytes, calls: Sequence[Call]) -> None:
        """Commit with retries for START_S, because replicas may lag far behind at the start."""
        until_s = self._clock() + START_S
        while True:
            try:
                self._link.commit(function, calls, self._promise.replicas, self._wait_ms)
                return
            except StallError:
                if self._clock() >= until_s:
                    raise
            self._sleep(START_PAUSE_S)

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
        if not unconfirmed.calls:
            if self._lease.is_doubtful(self._clock()):  # Answers wait for this commit, too.
                self._check_lease()
            return fenced
        self._unconfirmed = unconfirmed
        return fenced | self._send(unconfirmed)

    def _prepare(self, ops: Sequence[StoreOp]) -> Commit:
        changes = CommitChanges(self._owned, ops)
        in_cluster = isinstance(self._link, RedisCluster)
        calls = changes.calls(self._names, self._queues, by_bucket=in_cluster)
        size_bytes = sum([call.size_bytes for call in calls])
        return Commit(ops, self._number + 1, changes, calls, size_bytes)

    def _send(self, unconfirmed: Commit) -> Fenced:
        replicas = self._promise.replicas
        number = unconfirmed.number
        calls = [(call.keys, (self._token, number, *call.arguments)) for call in unconfirmed.calls]
        try:
            if self._lease.is_due(self._clock()):  # `maintain` is not called meanwhile.
                self._renew()
            if len(calls) > 1:
                self._intend(unconfirmed)
            answers = self._link.commit(self._queues.commit, calls, replicas, self._wait_ms)
        except StallError:
            self._state = StoreState.STOPPED
            raise
        fenced = self._confirmed(unconfirmed, answers)
        self._state = StoreState.FLOWING
        return fenced

    def _intend(self, unconfirmed: Commit) -> None:
        """Record the commit with the configured durability, so that it will be completed."""
        function, token = self._queues.commit, self._token.encode()
        parts = [(call.keys, call.arguments) for call in unconfirmed.calls]
        value = Intent(token, function, unconfirmed.number, parts).encode()
        call = ([self._names.meta, self._names.intent], (self._token, value))
        (is_ours,) = self._link.commit(INTEND, [call], self._promise.replicas, self._wait_ms)
        if not is_ours:
            self._check_lease()
            raise StoreError(f"{self._link.where} has lost who owns what is below the prefix")

    def _confirmed(self, unconfirmed: Commit, answers: list[list[int]]) -> Fenced:
        """Apply a confirmed commit to the owned sessions. Return the fenced ones."""
        self._unconfirmed = None
        self._kept.keep(unconfirmed)
        number = self._number = unconfirmed.number
        if any(answers):
            self._check_lease()
            if any(WHOLE in refused[:1] for refused in answers):
                raise StoreError(f"{self._link.where} has lost who owns what is below the prefix")
        fenced: set[str] = set()
        sessions = unconfirmed.changes.sessions
        for call, refused in zip(unconfirmed.calls, answers, strict=True):
            reasons = dict(zip(refused[::3], refused[1::3], strict=True))
            for part, client_id in enumerate(call.client_ids):
                change = sessions[client_id]
                reason = reasons.pop(part, None)
                if reason == REFUSED_FENCED:
                    fenced.add(client_id)
                    self._owned.pop(client_id, None)
                elif reason is not None:
                    raise StoreError(
                        f"{self._link.where} has lost what it had confirmed of session "
                        f"{client_id!r}"
                    )
                elif change.is_there:
                    self._owned[client_id] = OwnedSession(change.next_pos, change.sent_pos, number)
                else:
                    self._owned.pop(client_id, None)
            if reasons:
                raise StoreError(f"{self._link.where} has lost who owns its retained messages")
        return frozenset(fenced) if fenced else NOT_FENCED

    def _check_lease(self, *notes: bytes) -> None:
        """Raises `LockedError` if another broker owns the prefix, not only some sessions."""
        (answer,) = self._link.ask([(*self._lease.renewal(self._clock()), *notes)])
        self._lease.check(answer)

    def maintain(self) -> bool:
        """Renew the lease and read the server's memory when it is due."""
        pair = None if self._time is None else self._time.due()
        if pair is None and not self._lease.is_due(self._clock()):
            return False
        try:
            if self._time is not None and pair is not None:
                self._link.ask([(b"HSET", self._names.meta, b"clock", pair)])
                self._time.stored(pair)
            self._renew()
        except StallError:
            self._state = StoreState.STOPPED
            return False
        if self._unconfirmed is None:
            self._state = StoreState.FLOWING
        return False

    def _renew(self) -> None:
        (renewed,) = self._link.ask([self._lease.renewal(self._clock())])
        self._lease.check(renewed)
        self._look(self._link.memory())

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
            asked = [session_questions(self._names, self._queues, each) for each in page]
            answers = self._link.ask([command for commands in asked for command in commands])
            for index, client_id in enumerate(page):
                yield session_record(client_id, answers[4 * index : 4 * index + 4])

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
        doubt = self._lease.is_doubtful(self._clock())
        return StoreLoad(self._state, self._used_bytes, free_bytes, is_full, reserve_bytes, doubt)

    # --- the whole ----------------------------------------------------------------------------

    def backup(self, folder: Path) -> None:
        raise StoreError(
            f"{self._link.where} is backed up by its own means: BGSAVE there, and copy its files"
        )

    def close(self) -> None:
        """Release the lease, so that the next broker need not wait for its end."""
        if self._is_open:
            with suppress(StoreError):  # A new connection first writes a lost tail again.
                self._lease.leave(is_done=self._unconfirmed is None)
            self._is_open = False
            self._link.close()
