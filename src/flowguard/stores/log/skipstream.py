"""The skip-stream layout (source: EMQX's `skipstream_lts`): a stream for each structure of topics.

    data    shard (2 bytes), stream (8), 0 (2), stamp (8) -> message
    index   shard (2 bytes), stream (8), level (2, from 1), hash of its word (8), stamp (8)

A message has a row of data, and an index row for each of its varying levels (`structure`). A filter
without words for these levels reads the data in order. Any other filter reads the index rows of all
its words in lock step: each cursor seeks the stamp that the previous one has found, and a stamp
that all of them have belongs to a message.
"""

from collections.abc import Sequence
from typing import Final, final

from flowguard.stores.log.layout import LogQuestion, Row
from flowguard.stores.log.rows import Cursor, Found, LogRows, ReadBounds, Sieve, sift
from flowguard.stores.log.structure import BEGIN, ID_BYTES, Structure, Term

STAMP_BYTES: Final = 8
SETS_MAX: Final = 8
"""Maximum number of sets of words searched in one stream; with more, all of it is read."""
_DATA: Final = bytes(2)
_LEVEL_AT: Final = 2 + ID_BYTES
_STAMP_AT: Final = _LEVEL_AT + len(_DATA)
_NOTHING: Final = 1 << 64
"""A stamp above all others."""


@final
class SkipstreamLayout:
    """A layout for whole streams, with an index for narrow filters, which needs more rows."""

    def __init__(self, rows: LogRows, heir_of: "SkipstreamLayout | None" = None) -> None:
        """`rows` are those of its generation; `heir_of` is the layout of the previous one."""
        self._structure = Structure()
        edges = _Edges()
        every = ReadBounds(1 << 40, 1 << 60, 1 << 60)
        found, _ = sift(rows, edges, BEGIN, BEGIN + b"\xff" * (ID_BYTES + 1), every)
        self._structure.load([(k, v) for k, (_, v) in zip(edges.keys, found, strict=True)])
        if heir_of is not None and not found:
            self._structure.inherit(heir_of._structure)

    def rows_of(self, shard: int, stamp: int, topic: str, value: bytes) -> Sequence[Row]:
        stream, terms = self._structure.path_of(topic)
        head, end = shard.to_bytes(2, "big") + stream, stamp.to_bytes(STAMP_BYTES, "big")
        rows = [(head + _DATA + end, value)]
        rows += [(head + term + end, b"") for term in terms]
        return rows

    def learned(self) -> Sequence[Row]:
        return self._structure.fresh

    def stored(self) -> None:
        if self._structure.fresh:
            self._structure.fresh = []

    def is_message(self, key: bytes) -> bool:
        return key[_LEVEL_AT:_STAMP_AT] == _DATA

    def read(self, rows: LogRows, question: LogQuestion, place: bytes, bounds: ReadBounds) -> Found:
        head = question.shard.to_bytes(2, "big")
        streams = [
            (head + stream, sets if len(sets) <= SETS_MAX and () not in sets else [])
            for stream, sets in self._structure.streams_of(question.filters).items()
            if head + stream >= place[:_LEVEL_AT]
        ]
        width = max((sum(map(len, sets)) for _, sets in streams), default=0)
        end = (question.shard + 1).to_bytes(2, "big")
        first = question.after + 1

        def search(cursors: list[Cursor]) -> Found:
            walk = _Walk(cursors, question.until, bounds)
            for stream, sets in streams:
                base = stream + _DATA
                is_here = place.startswith(base)
                start = int.from_bytes(place[_STAMP_AT:], "big") if is_here else first
                on = walk.some(stream, sets, start) if sets else walk.all(base, start)
                if on <= question.until:
                    return walk.found, base + on.to_bytes(STAMP_BYTES, "big")
            return walk.found, b""

        return rows.look([end] * (1 + width), search)


@final
class _Edges(Sieve):
    """Selects all rows, and collects their keys."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def stamp(self, key: bytes) -> int:
        self.keys.append(key)
        return 0

    def goal(self, key: bytes) -> bytes:
        raise AssertionError("every row is wanted")


@final
class _Walk:
    """One read of one stream after the other; the first cursor is that of the data."""

    def __init__(self, cursors: list[Cursor], until: int, bounds: ReadBounds) -> None:
        self.found: list[tuple[int, bytes]] = []
        self.cursors = cursors
        self._until = until
        self._count_left = bounds.count_max
        self._bytes_left = bounds.bytes_max
        self.visits_left = bounds.visits_max

    @property
    def _is_over(self) -> bool:
        return self._count_left <= 0 or self._bytes_left <= 0 or self.visits_left <= 0

    def _take(self, stamp: int, value: bytes) -> None:
        self.found.append((stamp, value))
        self._count_left -= 1
        self._bytes_left -= len(value)

    def all(self, base: bytes, start: int) -> int:
        """Take all data from the stamp `start` on. Return the stamp at which to continue, above
        `until` at the end."""
        if self._is_over:
            return start
        cursor, until = self.cursors[0], self._until
        try:
            self.visits_left -= 1
            cursor.seek(base + start.to_bytes(STAMP_BYTES, "big"))
            while (key := cursor.key()) is not None and key.startswith(base):
                stamp = int.from_bytes(key[_STAMP_AT:], "big")
                if stamp > until:
                    break
                self.visits_left -= 1
                self._take(stamp, cursor.value())
                if self._is_over:
                    return stamp + 1
                cursor.next()
        finally:
            del cursor  # If a caller keeps an error, it would keep the cursor alive.
        return _NOTHING

    def some(self, stream: bytes, sets: Sequence[tuple[Term, ...]], start: int) -> int:
        """Take data from `start` on that have all words of one of the sets. Returns as `all`."""
        meetings, used = list[_Meeting](), 1
        for terms in sets:
            meetings.append(_Meeting(self, used, [stream + term for term in terms]))
            used += len(terms)
        cursor, at = self.cursors[0], start
        try:
            while not self._is_over:
                at = min([each.find(at) for each in meetings])
                if at > self._until or self.visits_left <= 0:
                    break
                key = stream + _DATA + at.to_bytes(STAMP_BYTES, "big")
                cursor.seek(key)
                if cursor.key() == key:
                    self._take(at, cursor.value())
                at += 1
        finally:
            del cursor
        return at


@final
class _Meeting:
    """Finds the stamps that have a row after every one of `prefixes`."""

    def __init__(self, walk: _Walk, first: int, prefixes: Sequence[bytes]) -> None:
        """`first` is the number of the first prefix's cursor."""
        self._walk = walk
        self._first = first
        self._prefixes = prefixes
        self._stamps = [-1] * len(prefixes)
        """The stamp of each cursor's row, -1 before its first use."""

    def find(self, at: int) -> int:
        """Return the first such stamp from `at` on, or a lower bound if visits are used up."""
        number, agreed, count = 0, 0, len(self._prefixes)
        while agreed < count and at < _NOTHING and self._walk.visits_left > 0:
            stamp = self._seek(number, at)
            agreed = agreed + 1 if stamp == at else 1
            at = stamp
            number = (number + 1) % count
        return at

    def _seek(self, number: int, at: int) -> int:
        """Return the first stamp from `at` on after one of the prefixes."""
        stamp = self._stamps[number]
        if stamp >= at:
            return stamp
        cursor = self._walk.cursors[self._first + number]
        prefix = self._prefixes[number]
        try:
            if stamp >= 0:
                cursor.next()
                stamp = self._here(cursor, prefix)
            if stamp < at:
                cursor.seek(prefix + at.to_bytes(STAMP_BYTES, "big"))
                stamp = self._here(cursor, prefix)
        finally:
            del cursor
        self._stamps[number] = stamp
        return stamp

    def _here(self, cursor: Cursor, prefix: bytes) -> int:
        self._walk.visits_left -= 1
        key = cursor.key()
        if key is None or not key.startswith(prefix):
            return _NOTHING
        return int.from_bytes(key[len(prefix) :], "big")
