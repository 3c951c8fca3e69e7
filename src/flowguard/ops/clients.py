"""The clients of a node, as a list in pages.

A node may have 200,000 sessions, and the event loop has other work. So a page looks at
`LOOKS_MAX` sessions at most, `SLICE` at a time, and has a cursor for the next page. With a filter a
page may be empty and still have a cursor. The first page notes the ids of all sessions, so clients
that come and go meanwhile move nothing: a later page leaves out sessions that have ended.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from typing import Final, Generic, Self, TypeVar, final

from typing_extensions import TypedDict

from flowguard.session.connection import ServerConnection
from flowguard.session.session import Session
from flowguard.types import PROTOCOLS

PAGE_MAX: Final = 1_000
SLICE: Final = 20
"""Sessions looked at in one step of the event loop."""
LOOKS_MAX: Final = 5_000
"""Sessions looked at for one page."""
LISTS_MAX: Final = 4
"""Lists of ids that are kept for their next pages; a further one replaces the oldest."""
PATTERN_MAX: Final = 256
"""Maximum length of a pattern, in characters."""


C = TypeVar("C")


class ClientState(StrEnum):
    CONNECTED = "connected"
    PAUSED = "paused"
    """Connected, and its packets wait."""
    ABSENT = "absent"
    """It has a session, and no connection."""


class ListedClient(TypedDict):
    client_id: str
    state: str
    user: str
    """The user of the connection, or the one that the session belongs to, or ""."""
    address: str
    protocol: str
    subscriptions: int
    queue_messages: int
    inflight: int
    """Messages sent to it and unacknowledged."""


class ClientPage(TypedDict):
    clients: list[ListedClient]
    next: str | None
    """Cursor of the next page, or null after the last one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The parameters of a list; an empty text stands for all."""

    id: re.Pattern[str] | None = None
    user: str = ""
    address: str = ""
    """Beginning of the address."""
    state: ClientState | None = None
    """`CONNECTED` includes those that are paused."""
    limit: int = PAGE_MAX
    cursor: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of a request; raises ValueError with the reason."""
        unknown = query.keys() - {"id", "user", "address", "state", "limit", "cursor"}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        pattern, state, limit = query.get("id"), query.get("state"), query.get("limit", "")
        if pattern is not None and len(pattern) > PATTERN_MAX:
            raise ValueError(f"id: at most {PATTERN_MAX} characters")
        if state is not None and state not in list(ClientState):
            raise ValueError(f"state: one of {', '.join(ClientState)}")
        if limit and not (limit.isascii() and limit.isdecimal() and 1 <= int(limit) <= PAGE_MAX):
            raise ValueError(f"limit: 1 to {PAGE_MAX}")
        return cls(
            None if pattern is None else re.compile(translate(pattern)),
            query.get("user", ""),
            query.get("address", ""),
            None if state is None else ClientState(state),
            int(limit) if limit else PAGE_MAX,
            query.get("cursor", ""),
        )

    def accepts(self, row: ListedClient) -> bool:
        state = self.state
        return (
            (not self.user or row["user"] == self.user)
            and row["address"].startswith(self.address)
            and (
                state is None
                or row["state"] == state
                or (state is ClientState.CONNECTED and row["state"] == ClientState.PAUSED)
            )
        )


@final
class ClientLists(Generic[C]):
    """Makes pages; each call of `step` is one step of the event loop."""

    def __init__(self, clients: Mapping[str, C], row_of: Callable[[C], ListedClient]) -> None:
        """`clients`: all clients of a broker or a proxy, by client id."""
        self._clients = clients
        self._row_of = row_of
        self._lists: OrderedDict[str, list[str]] = OrderedDict()
        self._made = 0

    def begin(self, wanted: Wanted) -> "PageInMaking[C] | None":
        """Return the page that the cursor stands for, or None if its list is no longer kept."""
        if not wanted.cursor:
            self._made += 1
            name, done = str(self._made), 0
            self._lists[name] = list(self._clients)
            if len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)
        else:
            name, _, position = wanted.cursor.partition(".")
            if name not in self._lists or not (position.isascii() and position.isdecimal()):
                return None
            self._lists.move_to_end(name)
            done = int(position)
        listed = self._lists[name]
        return PageInMaking(self._clients, self._row_of, listed, name, done, wanted)

    def finish(self, page: "PageInMaking[C]") -> ClientPage:
        """Return the page; after the last one its list is forgotten."""
        is_last = page.done >= len(page.ids)
        if is_last:
            self._lists.pop(page.name, None)
        return ClientPage(clients=page.rows, next=None if is_last else f"{page.name}.{page.done}")


@final
class PageInMaking(Generic[C]):
    def __init__(
        self,
        clients: Mapping[str, C],
        row_of: Callable[[C], ListedClient],
        ids: list[str],
        name: str,
        done: int,
        wanted: Wanted,
    ) -> None:
        """`ids` is the list called `name`; of these, earlier pages have looked at `done`."""
        self._clients = clients
        self._row_of = row_of
        self._wanted = wanted
        self.ids = ids
        self.name = name
        self.done = done
        self.rows: list[ListedClient] = []
        self._until = min(done + LOOKS_MAX, len(ids))

    def step(self) -> bool:
        """Look at the next `SLICE` sessions; return True if the page goes on."""
        stop = min(self.done + SLICE, self._until)
        is_id = None if self._wanted.id is None else self._wanted.id.match
        while self.done < stop and len(self.rows) < self._wanted.limit:
            client_id = self.ids[self.done]
            self.done += 1
            client = self._clients.get(client_id)
            if client is None or (is_id is not None and not is_id(client_id)):
                continue
            row = self._row_of(client)
            if self._wanted.accepts(row):
                self.rows.append(row)
        return self.done < self._until and len(self.rows) < self._wanted.limit


def row_of(session: Session) -> ListedClient:
    state, user, address, protocol = ClientState.ABSENT, session.user, "", ""
    if session.outbound is not None:
        connection = session.outbound.connection
        assert isinstance(connection, ServerConnection)
        state = ClientState.PAUSED if connection.pauses() else ClientState.CONNECTED
        user = connection.tenant or user
        peer = getattr(connection.transport, "peer", None)
        address = "" if peer is None else peer()
        protocol = PROTOCOLS.get(connection.version, "3.1")
    return ListedClient(
        client_id=session.client_id,
        state=str(state),
        user=user,
        address=address,
        protocol=protocol,
        subscriptions=len(session.subscriptions),
        queue_messages=session.queue.count,
        inflight=len(session.inflight.messages),
    )
