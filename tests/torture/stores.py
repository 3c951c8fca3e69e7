"""The stores that a broker of these tests can be started with, by name.

`rocks` is the one on trial, `status` the same in its other layout, `rocks-log` the same with a
durable log of many short generations. `log` is the simplest store that
keeps the contract: it checks harness and broker without RocksDB. `redis` is on trial, too, on a
server that whoever starts the broker has started; so is `kafka`, in which the queues of
applications are in topics. All others break one promise each, and must be found out.
"""

import io
import os
import pickle
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flowguard.app.stores import open_store
from flowguard.config import Settings, StoreSettings
from flowguard.errors import StallError, StoreError
from flowguard.records import (
    Append,
    Delivery,
    DropInbound,
    Durability,
    PutInbound,
    PutLogPlace,
    QueueEntry,
    Release,
    SessionRecord,
    StoreOp,
)
from flowguard.stores import NOT_FENCED, Fenced, MemoryStore, Store
from flowguard.stores.base import POS_MAX, StoreLoad
from flowguard.stores.log.replays import LogBatch, LogPlace
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from tests.support.patience import HANG_S

LATE_BATCHES = 3
STATUS = {"layout": "status"}
REDIS_FILE = "redis"
RESERVE = 2**20
"""Reserve of a Redis with a limit, bytes."""
KAFKA_FILE = "kafka-place"
ROLLING = "rocks-log"
APPLYING = ("kafka", "late-kafka", "no-release-kafka")
"""Those that keep the queues of applications in Kafka."""
LOGGING = (ROLLING, "no-place")
"""Those of which brokers may keep messages in the durable log."""
GENERATION_BYTES = 96 * 1024
GENERATIONS_MAX = 20
"""Number beyond which the oldest is dropped after all have read it: on a busy machine brokers live
too briefly for a sleeper to catch up."""


class LogStore(MemoryStore):
    """A memory store with a log of pickled batches, and a snapshot made at every start."""

    immediate = False
    on_disk = True

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        self._syncs = settings.durability == "fsync"
        self.durability = Durability.FSYNC if self._syncs else Durability.OS
        snapshot, log = folder / "snapshot", folder / "log"
        generation = 0
        if snapshot.exists():
            state = pickle.loads(snapshot.read_bytes())
            generation, self._sessions, self._queues, self._retained = state
        if log.exists():
            for batch in _batches(log.read_bytes(), generation):
                super().commit(batch)
        generation += 1
        state = generation, self._sessions, self._queues, self._retained
        fresh = folder / "snapshot.new"
        fresh.write_bytes(_pickled(state))
        fresh.replace(snapshot)
        # It has another generation until it is truncated, so that it is not applied to the new
        # snapshot.
        self._log: BinaryIO = log.open("wb", buffering=0)
        self._log.write(struct.pack(">Q", generation))

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        data = _pickled(ops)
        self._log.write(struct.pack(">I", len(data)) + data)
        if self._syncs:
            os.fdatasync(self._log.fileno())
        return super().commit(ops)

    def close(self) -> None:
        self._log.close()


class _Pickler(pickle.Pickler):
    """Records come back through their constructor: a compiled one has no other way."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Delivery):
            names = ["message", "qos", "retain", "identifiers", "expires_at_s", "place"]
        elif isinstance(value, SessionRecord):
            names = [field.name for field in fields(value)]
            return _session_record, ({name: getattr(value, name) for name in names},)
        elif is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value)]
        else:
            return NotImplemented
        return type(value), tuple(getattr(value, name) for name in names)


def _session_record(values: dict[str, Any]) -> SessionRecord:
    record = SessionRecord(values["client_id"], values["expiry_interval_s"])
    for name, value in values.items():
        setattr(record, name, value)
    return record


def _pickled(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _batches(log: bytes, generation: int) -> Iterator[list[StoreOp]]:
    """The whole batches of a log that belongs to the snapshot; the last one may be torn."""
    if len(log) < 8 or struct.unpack_from(">Q", log)[0] != generation:
        return
    at = 8
    while at + 4 <= len(log):
        (size_bytes,) = struct.unpack_from(">I", log, at)
        data = log[at + 4 : at + 4 + size_bytes]
        if len(data) < size_bytes:
            return
        yield pickle.loads(data)
        at += 4 + size_bytes


class Wrapped:
    """A store around another one, which it passes everything on to."""

    immediate = False
    on_disk = True

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.durability = inner.durability
        self.upkeep_ticks = inner.upkeep_ticks
        self.lease_s = inner.lease_s
        self.clock = inner.clock

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        return self.inner.commit(ops)

    def sessions(self) -> Iterator[SessionRecord]:
        return self.inner.sessions()

    def retained(self) -> Iterator[tuple[Publish, float]]:
        return self.inner.retained()

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = 2**20,
    ) -> list[QueueEntry]:
        return self.inner.fetch(
            client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max
        )

    def maintain(self) -> bool:
        return self.inner.maintain()

    def backup(self, folder: Path) -> None:
        self.inner.backup(folder)

    def load(self) -> StoreLoad:
        return self.inner.load()

    def close(self) -> None:
        self.inner.close()


class RollingStore(Wrapped):
    """RocksDB with a durable log of which a generation ends after a moment, or with a broker."""

    def __init__(self, inner: RocksStore, forgets: type[StoreOp] | None = None) -> None:
        """`forgets`: it never keeps operations of that kind."""
        super().__init__(inner)
        self._rocks = inner
        self._forgets = forgets
        self._roll(0)

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        forgets = self._forgets
        return super().commit([op for op in ops if forgets is None or not isinstance(op, forgets)])

    def _roll(self, size_bytes: int) -> bool:
        log = self._rocks.log
        current = log.current
        if current is not None and current.size_bytes > size_bytes:
            log.roll()
            return True
        generations = log.generations
        if len(generations) > GENERATIONS_MAX and self._is_read(generations[0].last):
            log.drop(generations[0].number)
            return True
        return False

    def _is_read(self, stamp: int) -> bool:
        """Whether no session has anything to read up to there."""
        places = [record.log_place for record in self.inner.sessions() if record.log_place]
        return all(LogPlace.decode(place).after >= stamp for place in places)

    def maintain(self) -> bool:
        return self._roll(GENERATION_BYTES) or super().maintain()

    def read_log(
        self,
        client_id: str,
        filters: Sequence[str],
        count_max: int,
        bytes_max: int,
        place: bytes = b"",
    ) -> LogBatch:
        return self._rocks.read_log(client_id, filters, count_max, bytes_max, place)


class LateStore(Wrapped):
    """Reports a batch as durable while the last few are in memory, until the next read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._late: deque[list[StoreOp]] = deque()

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self._late.append(list(ops))
        self._write(LATE_BATCHES)
        return NOT_FENCED

    def _write(self, but: int) -> None:
        while len(self._late) > but:
            self.inner.commit(self._late.popleft())

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = 2**20,
    ) -> list[QueueEntry]:
        self._write(0)
        return super().fetch(client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max)

    def close(self) -> None:
        self._write(0)
        super().close()


class ForgetfulStore(Wrapped):
    """Never keeps operations of one kind."""

    def __init__(self, inner: Store, kind: type[StoreOp]) -> None:
        super().__init__(inner)
        self._kind = kind

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        return super().commit([op for op in ops if not isinstance(op, self._kind)])


class DisorderlyStore(Wrapped):
    """Keeps two messages that a client was sent in one batch in each other's place."""

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        before: dict[str, Append] = {}
        kept: list[StoreOp] = []
        for op in ops:
            if isinstance(op, Append):
                op = Append(op.client_id, op.pos, op.delivery)
                other = before.pop(op.client_id, None)
                if other is None:
                    before[op.client_id] = op
                else:
                    op.delivery, other.delivery = other.delivery, op.delivery
            kept.append(op)
        return super().commit(kept)


def rocks(folder: Path, settings: StoreSettings) -> RocksStore:
    return RocksStore(folder, settings, wall_s=time.time, random_node=lambda: secrets.randbits(32))


def redis(folder: Path, settings: StoreSettings) -> Store:
    """On the server of which the URL is in a file beside `folder`, with its durability."""
    from flowguard.stores.redis import RedisStore

    url, durability, layout = (folder.parent / REDIS_FILE).read_text().split()
    chosen = Settings.model_validate(
        {
            "store": {"kind": "redis", "durability": durability, "disk_reserve_bytes": RESERVE},
            "redis": {"url": url, "layout": layout},
        }
    )
    until_s = time.monotonic() + HANG_S
    while True:
        with _client_of(url) as client:
            if client.exists("fg1:meta"):
                client.hset("fg1:meta", "beat", 1)  # The one before is dead: its lease has ended.
        token = secrets.token_hex(8)
        try:
            return RedisStore(
                chosen, token=token, name=token, clock=time.monotonic, sleep=time.sleep
            )
        except StoreError as error:  # It had no time for an answer: a supervisor tries again.
            if not isinstance(error.__cause__, StallError) or time.monotonic() > until_s:
                raise


def _client_of(url: str) -> Any:
    """A client of redis-py for a server, or for a cluster by its first node."""
    import redis as driver

    scheme, _, rest = url.partition("://")
    if scheme != "redis+cluster":
        return driver.Redis.from_url(url)
    return driver.RedisCluster.from_url(f"redis://{rest.partition(',')[0]}")


def kafka(folder: Path, settings: StoreSettings) -> Store:
    """On the servers and with the prefix that are in a file beside `folder`."""
    servers, prefix = (folder.parent / KAFKA_FILE).read_text().split()
    place = {"servers": servers, "prefix": prefix}
    chosen = Settings.model_validate({"store": settings.model_dump(), "kafka": place})
    return open_store(chosen, folder)


STORES: dict[str, Callable[[Path, StoreSettings], Store]] = {
    "rocks": rocks,
    "status": lambda folder, settings: rocks(folder, settings.model_copy(update=STATUS)),
    ROLLING: lambda *given: RollingStore(rocks(*given)),
    "no-place": lambda *given: RollingStore(rocks(*given), PutLogPlace),
    "log": LogStore,
    "redis": redis,
    "kafka": kafka,
    "late-kafka": lambda *given: LateStore(kafka(*given)),
    "no-release-kafka": lambda *given: ForgetfulStore(kafka(*given), Release),
    "late": lambda *given: LateStore(LogStore(*given)),
    "late-rocks": lambda *given: LateStore(rocks(*given)),
    "no-inbound": lambda *given: ForgetfulStore(LogStore(*given), PutInbound),
    "no-release": lambda *given: ForgetfulStore(LogStore(*given), Release),
    "all-inbound": lambda *given: ForgetfulStore(LogStore(*given), DropInbound),
    "disorderly": lambda *given: DisorderlyStore(LogStore(*given)),
}
