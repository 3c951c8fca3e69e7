"""Generations of the durable log in the database: one family each, and a record in `default`."""

from typing import final

from flowguard.stores.log.rows import LogRows
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.format import LOG, with_feature
from flowguard.stores.rocks.layouts.keys import FORMAT_KEY, GENERATION, GENERATION_END


def generation_key(number: int) -> bytes:
    return GENERATION + number.to_bytes(4, "big")


@final
class RocksLogHome:
    """A `flowguard.stores.log.homes.LogHome` in an open engine."""

    def __init__(self, engine: RocksEngine, *, tidies: bool = True) -> None:
        """`tidies`: delete the rest of an unfinished change; False if the engine is read-only."""
        self._engine = engine
        self._tidies = tidies

    def load(self) -> dict[int, bytes]:
        engine = self._engine
        found = {
            int.from_bytes(key[1:], "big"): record
            for key, record in engine.meta.scan(GENERATION, GENERATION_END, 2**40)
        }
        if self._tidies:
            for number in engine.slices.keys() - found.keys():
                engine.drop_slice(number)
        return found

    def create(self, number: int) -> LogRows:
        record = self._engine.meta.get(FORMAT_KEY)
        if record is not None and with_feature(record, LOG) != record:
            batch = self._engine.batch()
            batch.put(FORMAT_KEY, with_feature(record, LOG), self._engine.meta.handle)
            self._engine.write(batch)
        return self._engine.add_slice(number)

    def rows(self, number: int) -> LogRows:
        return self._engine.add_slice(number)

    def drop(self, number: int) -> None:
        if self._tidies:
            self._engine.drop_slice(number)

    def write(self, records: dict[int, bytes | None]) -> None:
        batch = self._engine.batch()
        for number, record in records.items():
            if record is None:
                batch.delete(generation_key(number), self._engine.meta.handle)
            else:
                batch.put(generation_key(number), record, self._engine.meta.handle)
        self._engine.write(batch)
