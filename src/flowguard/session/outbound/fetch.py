"""Fetch: a question to the store, for a page of what waits there for one client or group."""

from typing import Final, final

from flowguard.errors import NotNowError, StoreError
from flowguard.records import QueueEntry
from flowguard.stores import Store

# Not final: tests have a smaller one, and the compiled code should look at it.
MOVING_MAX = 500
"""Messages on their way from the log into queues with which no more set out: what is live waits
for the commit that they are in, and then for the next one."""
MOVING_PAGE: Final = 70
"""Of which one page has no more while live work shares the commits."""
MOVING_SHARE: Final = 0.25
"""What moves then, of the live work in a commit; a page may always."""


class PageOwner:
    """The owner of a page's messages: a `MessageSink`, as far as the store is asked for it."""

    __slots__ = ("client_id", "ended")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        """The key under which the store keeps them (`records.key_of`)."""
        self.ended = False  # The last one: compiled, it lies beside the flags of the next class.

    @property
    def connected(self) -> bool:
        """Whether its client is here."""
        return False

    @property
    def positions(self) -> dict[int, int] | None:
        """Positions of messages in flight by packet identifier, or None if there are none."""
        return None

    @property
    def damage(self) -> str:
        """Why the last page could not be read; empty: it could."""
        return ""


@final
class ReadProgress:
    """How much of a backlog has come from the disk, and since when, for a client that is here."""

    __slots__ = ("count", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0

    def per_s(self, now_s: float) -> float:
        """Messages per second."""
        return self.count / (now_s - self.since_s) if now_s > self.since_s else 0.0


@final
class Moving:
    """The messages that are on their way from the log into queues, and retained ones, all clients
    together, and how many there may be: a commit takes as long as what is in it."""

    __slots__ = ("_count_max", "count", "is_shared", "page_max")

    def __init__(self) -> None:
        self.count = 0
        self.is_shared = False
        """Live work shares the commits."""
        self.have_all()

    @property
    def is_full(self) -> bool:
        """No page sets out."""
        return self.count >= min(self._count_max, MOVING_MAX)

    def share(self, live_count: int) -> None:
        """The commit that begins has so much live work in it."""
        self._count_max = max(1, int(MOVING_SHARE * live_count))
        self.page_max = MOVING_PAGE
        self.is_shared = True

    def have_all(self) -> None:
        """There is no live work."""
        self._count_max = self.page_max = MOVING_MAX
        self.is_shared = False


class Fetch:
    """A page of a backlog that the store is to be asked for."""

    __slots__ = (
        "after_pos",
        "bytes_max",
        "client_id",
        "count_max",
        "damage",
        "looks",
        "owner",
        "sent",
        "until_pos",
    )

    def __init__(
        self,
        owner: PageOwner,
        after_pos: int,
        until_pos: int,
        count_max: int,
        bytes_max: int,
        *,
        looks: bool,
    ) -> None:
        self.owner = owner
        self.client_id = owner.client_id
        self.after_pos = after_pos
        self.until_pos = until_pos
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.looks = looks
        """The page is only looked through, and stays where it is."""
        self.damage = ""
        """Why the store cannot read it."""
        self.sent = {pos for pos in (owner.positions or {}).values() if pos > after_pos}
        """In flight, and to be read over: the queue let go of what the client has in hand."""

    def entries(self, store: Store) -> list[QueueEntry]:
        """Ask; blocks as the store does. None come where there is `damage`.

        Raises `NotNowError`: ask again later.
        """
        try:
            return self.ask(store)
        except NotNowError:
            raise
        except StoreError as error:
            self.damage = str(error)
        return []

    def ask(self, store: Store) -> list[QueueEntry]:
        """Ask, as `entries`; raises `StoreError` where it cannot be read."""
        return store.fetch(
            self.client_id,
            self.after_pos,
            self.count_max,
            until_pos=self.until_pos,
            bytes_max=self.bytes_max,
        )
