"""A store in memory that keeps the queues of applications apart, as far as a node can see."""

from collections.abc import Sequence

from flowguard.records import (
    AppendToLog,
    DropInbound,
    DropRetained,
    DropSession,
    Forward,
    PutInbound,
    PutRetained,
    PutSession,
    PutWill,
    QueueEntry,
    StoreOp,
)
from flowguard.stores import Fenced, GroupFeed, MemoryStore, Store
from flowguard.stores.base import FETCH_BYTES, POS_MAX
from tests.support.stage import StoreOnDisk


class StoreApart(StoreOnDisk):
    """It asserts that nothing of applications is committed to `devices`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._owed: dict[str, int] = {}
        self.devices: Store = _Devices(self)

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        for op in ops:
            if isinstance(op, PutSession):
                (self.names.add if op.is_application else self.names.discard)(op.client_id)
            elif isinstance(op, DropSession):
                self.names.discard(op.client_id)
            elif isinstance(op, Forward):
                self._owed[op.client_id] = max(self._owed.get(op.client_id, 0), op.owed_pos)
        return super().commit([op for op in ops if not isinstance(op, Forward)])

    @property
    def groups(self) -> GroupFeed | None:
        return None

    def owed_pos(self, client_id: str) -> int:
        return self._owed.get(client_id, 0)

    def take_lost(self) -> dict[str, int]:
        return {}


class _Devices(StoreOnDisk):
    def __init__(self, store: StoreApart) -> None:
        self._store = store

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        names = self._store.names
        for op in ops:
            if not isinstance(op, (PutRetained, DropRetained, AppendToLog)):
                is_own = isinstance(op, (PutInbound, DropInbound, PutWill))
                assert is_own or op.client_id not in names, op
            assert not (isinstance(op, PutSession) and op.is_application), op
        return MemoryStore.commit(self._store, ops)

    def fetch(
        self,
        client_id: str,
        after_pos: int,
        limit: int,
        *,
        until_pos: int = POS_MAX,
        bytes_max: int = FETCH_BYTES,
    ) -> list[QueueEntry]:
        assert client_id not in self._store.names
        return self._store.fetch(
            client_id, after_pos, limit, until_pos=until_pos, bytes_max=bytes_max
        )
