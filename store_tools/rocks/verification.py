"""Verification: reads a whole store and checks its consistency, without changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.records import owner_name
from flowguard.stores.messages import decode_message
from flowguard.stores.rocks.database.engine import KEYS_END
from flowguard.stores.rocks.layouts.codec import UID_BYTES
from flowguard.stores.rocks.layouts.keys import queue_prefix
from flowguard.stores.rocks.layouts.session_codec import decode_retained
from store_tools.rocks.reader import Findings, StoredSession, StoreReader

PROGRESS_ROWS: Final = 1_000


@dataclass(slots=True)
class Verification(Findings):
    """Counts of the rows that were read, and problems."""

    payloads: int = 0
    """Number of messages that queues share."""
    orphans: int = 0
    """Number of shared messages and queues without a reference. The store deletes such messages."""


def verify(reader: StoreReader, progress: Callable[[int, int], None]) -> Verification:
    """Read the whole store. `progress` is called with the number of rows read and the estimated
    total.

    A tolerant `reader` continues after unreadable rows, so that all problems are found."""
    return _Reading(reader, progress).run()


@final
class _Reading:
    def __init__(self, reader: StoreReader, progress: Callable[[int, int], None]) -> None:
        self._reader = reader
        self._tell = progress
        engine = reader.engine
        families = (engine.queues, engine.payloads, engine.retained)
        self._rows_estimate = sum(family.rows_estimate for family in families)
        self._rows = 0
        self._places: set[bytes] = set()
        """Shared messages that have a reference."""
        self._numbers = set(reader.dropped())
        self._found = Verification()

    def run(self) -> Verification:
        with self._told("sessions: "):
            for client_id, row in self._reader.rows():
                self._found.count_owner(client_id)
                with self._told():
                    self._read_session(self._reader.session(client_id, row))
        with self._told("queues: "):
            self._find_lost_queues()
        with self._told("shared messages: "):
            self._read_payloads()
        with self._told("retained messages: "):
            self._read_retained()
        for damage in self._reader.damage:
            self._found.wrong(damage)
        return self._found

    @contextmanager
    def _told(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except CorruptionError as error:
            self._found.wrong(f"{where}{self._reader.told(error)}")
        except UnicodeDecodeError as damage:  # mypyc gives a name in a generator one type.
            self._found.wrong(f"{where}a name is damaged: {damage}")

    def _read(self) -> None:
        self._rows += 1
        if self._rows % PROGRESS_ROWS == 0:
            self._tell(self._rows, max(self._rows, self._rows_estimate))

    def _read_session(self, session: StoredSession) -> None:
        client_id, queue = session.client_id, session.queue
        self._numbers.add(queue.qno)
        with self._told():
            self._reader.record(session)
        count = size_bytes = 0
        is_whole = False
        with self._told():
            for entry in self._reader.entries(session):
                self._read()
                count += 1
                if entry.delivery is not None:
                    size_bytes += entry.delivery.size_bytes
                    if len(entry.delivery.place) == UID_BYTES:
                        self._places.add(entry.delivery.place)
            is_whole = True
        if is_whole and (count, size_bytes) != (queue.count, queue.size_bytes):
            self._found.wrong(
                f"{owner_name(client_id)}: {count} entries with {size_bytes} bytes were found, "
                f"its record counts {queue.count} with {queue.size_bytes}"
            )
        self._found.entries += count

    def _find_lost_queues(self) -> None:
        start = b""
        while rows := self._reader.engine.queues.scan(start, KEYS_END, 1):
            qno = int.from_bytes(rows[0][0][:8], "big")
            if qno not in self._numbers:
                self._found.orphans += 1
            start = queue_prefix(qno + 1)

    def _read_payloads(self) -> None:
        for place, row in self._reader.engine.payloads.rows():
            self._read()
            self._found.payloads += 1
            if place not in self._places:
                self._found.orphans += 1
            with self._told(f"shared message {place.hex()}: "):
                decode_message(row, 0)

    def _read_retained(self) -> None:
        for key, row in self._reader.engine.retained.rows():
            self._read()
            self._found.retained += 1
            with self._told(f"retained message {key.decode(errors='replace')!r}: "):
                message, _ = decode_retained(row)
                if message.topic.encode() != key:
                    self._found.wrong(f"retained message of {message.topic!r} is kept as {key!r}")
