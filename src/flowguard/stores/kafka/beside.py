"""Beside: the store of everything but applications, which a second thread may call."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import final

from flowguard.records import Durability, QueueEntry, SessionRecord, StoreOp
from flowguard.stores.base import FETCH_BYTES, POS_MAX, Fenced, LogStore, Store, StoreLoad
from flowguard.stores.log.replays import LogBatch
from flowguard.types import Publish


@final
class Beside:
    """A store that two threads call. A call waits for the other thread, but never for Kafka."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._log = store if isinstance(store, LogStore) else None
        self._turn = Lock()
        self.durability: Durability = store.durability
        self.immediate: bool = store.immediate
        self.on_disk: bool = store.on_disk
        self.upkeep_ticks: int = store.upkeep_ticks
        self.lease_s: float | None = store.lease_s
        self.clock = store.clock

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        with self._turn:
            return self._store.commit(ops)

    def sessions(self) -> Iterator[SessionRecord]:
        return self._store.sessions()

    def retained(self) -> Iterator[tuple[Publish, float]]:
        return self._store.retained()

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        with self._turn:
            return self._store.fetch(
                client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max
            )

    def read_log(
        self,
        client_id: str,
        filters: Sequence[str],
        count_max: int,
        bytes_max: int,
        place: bytes = b"",
    ) -> LogBatch:
        assert self._log is not None
        with self._turn:
            return self._log.read_log(client_id, filters, count_max, bytes_max, place)

    def maintain(self) -> bool:
        with self._turn:
            return self._store.maintain()

    def backup(self, folder: Path) -> None:
        with self._turn:
            self._store.backup(folder)

    def load(self) -> StoreLoad:
        return self._store.load()

    def close(self) -> None:
        self._store.close()
