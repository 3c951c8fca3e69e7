"""Pages of a list, made in steps between which the event loop does its other work.

A node may have 200,000 sessions. So a page looks at `LOOKS_MAX` of them at most, `SLICE` at a time,
and has a cursor for the next page. With a filter a page may be empty and still have a cursor. A
list notes the names of its entries when it begins, so entries that come and go meanwhile move
nothing: a later page leaves out those that have ended.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final, Protocol, TypeVar, final

PAGE_MAX: Final = 1_000
"""Maximum number of rows of a page."""
PAGE_BYTES: Final = 1024 * 1024
"""Size after which a page has no further step, bytes; names may have 64 KiB."""
SLICE: Final = 10
"""Looks in one step of the event loop."""
LOOKS_MAX: Final = 5_000
"""Looks for one page."""
LISTS_MAX: Final = 4
"""Lists that are kept for their next pages; a further one replaces the oldest."""
PATTERN_MAX: Final = 256
"""Maximum length of a pattern, in characters."""
WILDCARDS: Final = frozenset("*?[")
PAGING: Final = ("limit", "cursor")
"""Parameters of every list."""
E = TypeVar("E")
P = TypeVar("P")


class Listing(Protocol[E, P]):
    """The content of a list: entries with parts. Each part may be a row."""

    def entries(self) -> Iterator[list[E]]:
        """Yield the names of the entries in pieces of bounded work; a piece may be empty."""

    def parts(self, entry: E) -> Sequence[P]:
        """Return the parts of an entry as it is now, or none if it has ended."""

    def row(self, part: P) -> Mapping[str, object] | None:
        """Return what is shown of a part, or None if it is not wanted."""


def parameters(query: Mapping[str, str], *known: str) -> tuple[str, ...]:
    """Return the parameters of these names, "" if absent; raises ValueError for other ones."""
    unknown = query.keys() - {*known, *PAGING}
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return tuple(query.get(name, "") for name in known)


@final
class IdPattern:
    """Client ids with * and ?, or "" for all."""

    def __init__(self, name: str, text: str) -> None:
        """`name`: the parameter. Raises ValueError if the pattern is too long."""
        if len(text) > PATTERN_MAX:
            raise ValueError(f"{name}: at most {PATTERN_MAX} characters")
        self._only = text if text and not WILDCARDS.intersection(text) else ""
        self._match = re.compile(translate(text or "*")).match

    def ids_in(self, clients: Mapping[str, object]) -> list[str]:
        """Return the ids to look at; a pattern without wildcards is one id."""
        return [self._only] if self._only else list(clients)

    def find(self, clients: Mapping[str, P], client_id: str) -> Sequence[P]:
        """Return the client of that id if it exists and the pattern matches, or nothing."""
        client = clients.get(client_id)
        return () if client is None or not self._match(client_id) else (client,)


def limit_of(query: Mapping[str, str]) -> int:
    """Return the maximum number of rows of a page. Raises ValueError."""
    return number_of(query, "limit", PAGE_MAX, 1, PAGE_MAX)


def number_of(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return the number that a parameter has. Raises ValueError with its limits."""
    text = query.get(name, str(default))
    if not (_is_number(text) and least <= int(text) <= most):
        raise ValueError(f"{name}: {least} to {most}")
    return int(text)


@final
class KeptList:
    """A list whose next page may be asked for."""

    __slots__ = ("_pieces", "entries", "is_complete", "listing", "name")

    def __init__(self, name: str, listing: Listing[Any, Any]) -> None:
        self.name = name
        self.listing = listing
        self.entries: list[Any] = []
        self._pieces = listing.entries()
        self.is_complete = False
        """True if all names of entries are noted."""

    def note_more(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            self.is_complete = True
        else:
            self.entries += piece


@final
class Lists:
    """The lists of a node; each call of `PageInMaking.step` is one step of the event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptList] = OrderedDict()
        self._made = 0

    def begin(
        self, listing: Listing[Any, Any], cursor: str = "", limit: int = PAGE_MAX
    ) -> "PageInMaking | None":
        """Return the first page of a list, or the page that the cursor stands for, or None if its
        list is no longer kept."""
        if not cursor:
            self._made += 1
            kept = KeptList(str(self._made), listing)
            self._kept[kept.name] = kept
            if len(self._kept) > LISTS_MAX:
                self._kept.popitem(last=False)
            return PageInMaking(kept, 0, 0, limit)
        name, *places = cursor.split(".")
        known = self._kept.get(name)
        if known is None or len(places) != 2 or not all(map(_is_number, places)):
            return None
        self._kept.move_to_end(name)
        return PageInMaking(known, int(places[0]), int(places[1]), limit)

    def finish(self, page: "PageInMaking") -> str | None:
        """Return the cursor of the next page; after the last page its list is forgotten."""
        if page.is_last():
            self._kept.pop(page.kept.name, None)
            return None
        return f"{page.kept.name}.{page.position}.{page.part}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


@final
class PageInMaking:
    def __init__(self, kept: KeptList, position: int, part: int, limit: int) -> None:
        """Begin at an entry and one of its parts."""
        self.kept = kept
        self.position = position
        self.part = part
        self.count = 0
        """Number of rows."""
        self._rows = bytearray()
        """The rows in JSON: to encode a page at once would take as long as five steps."""
        self._parts: Sequence[Any] | None = None
        self._limit = limit
        self._looks = LOOKS_MAX

    def text(self) -> bytes:
        """Return the rows as an array in JSON."""
        return b"[%s]" % self._rows

    def is_last(self) -> bool:
        return self.kept.is_complete and self.position >= len(self.kept.entries)

    def step(self) -> bool:
        """Take the next `SLICE` looks; return True if the page goes on."""
        rows: list[Mapping[str, object]] = []
        for _ in range(SLICE):
            if not self._goes_on():
                break
            self._looks -= 1
            self._look(rows)
        if rows:
            encoded = json.dumps(rows)[1:-1].encode()
            self._rows += b", " + encoded if self._rows else encoded
        return self._goes_on()

    def _goes_on(self) -> bool:
        is_full = self.count >= self._limit or self._looks <= 0 or len(self._rows) >= PAGE_BYTES
        return not (is_full or self.is_last())

    def _look(self, rows: list[Mapping[str, object]]) -> None:
        kept = self.kept
        if self.position >= len(kept.entries):
            kept.note_more()
            return
        if self._parts is None:
            self._parts = kept.listing.parts(kept.entries[self.position])
        if self.part < len(self._parts):
            row = kept.listing.row(self._parts[self.part])
            self.part += 1
            if row is not None:
                rows.append(row)
                self.count += 1
        if self.part >= len(self._parts):
            self.position, self.part, self._parts = self.position + 1, 0, None
