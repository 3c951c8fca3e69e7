"""Fetch: a request to the store for a page of messages that wait for one client or group."""

from typing import Final, final

from flowguard.errors import NotNowError, StoreError
from flowguard.records import QueueEntry
from flowguard.stores import Store

# Not final: tests have a smaller one, and the compiled code should look at it.
MOVING_MAX = 500
"""Number of messages on their way from the log into queues from which on no page follows. Live
work waits for the commit that they are in, and then for the next one."""
MOVING_PAGE: Final = 70
"""Maximum number of messages in a page while live work shares the commits."""
MOVING_SHARE: Final = 0.25
"""Moving messages then, as a share of the live work in a commit; one page is always allowed."""


class PageOwner:
    """The owner of a page's messages: the part of a `MessageSink` that requests need."""

    __slots__ = ("client_id", "ended")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        """The key of the messages in the store (`records.key_of`)."""
        self.ended = False  # The last one: compiled, it lies beside the flags of the next class.

    @property
    def connected(self) -> bool:
        """True if its client is connected."""
        return False

    @property
    def positions(self) -> dict[int, int] | None:
        """Positions of messages in flight by packet identifier, or None if there are none."""
        return None

    @property
    def damage(self) -> str:
        """Error of the last page, or ""."""
        return ""


@final
class ReadProgress:
    """Progress of reading a backlog from the disk for a connected client."""

    __slots__ = ("count", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0

    def per_s(self, now_s: float) -> float:
        """Messages per second."""
        return self.count / (now_s - self.since_s) if now_s > self.since_s else 0.0


@final
class Moving:
    """Number and limit of messages on their way from the log into queues, and of retained ones.

    They are limited for all clients together, as they make a commit take longer.
    """

    __slots__ = ("_count_max", "count", "is_shared", "page_max")

    def __init__(self) -> None:
        self.count = 0
        self.is_shared = False
        """True if live work shares the commits."""
        self.have_all()

    @property
    def is_full(self) -> bool:
        """True if no further page may be read."""
        return self.count >= min(self._count_max, MOVING_MAX)

    def share(self, live_count: int) -> None:
        """Share the commits with live work, of which the next one has `live_count`."""
        self._count_max = max(1, int(MOVING_SHARE * live_count))
        self.page_max = MOVING_PAGE
        self.is_shared = True

    def have_all(self) -> None:
        """Use the whole commits, as there is no live work."""
        self._count_max = self.page_max = MOVING_MAX
        self.is_shared = False


class Fetch:
    """A page of a backlog to read from the store."""

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
        """True if the page is only searched, and stays on disk."""
        self.damage = ""
        """Reason why the store cannot read it, or ""."""
        self.sent = {pos for pos in (owner.positions or {}).values() if pos > after_pos}
        """Positions in flight, which have left the queue and are skipped."""

    def entries(self, store: Store) -> list[QueueEntry]:
        """Read the page; blocks as the store does. Return [] and set `damage` after an error.

        Raises `NotNowError` if the caller has to try again later.
        """
        try:
            return self.ask(store)
        except NotNowError:
            raise
        except StoreError as error:
            self.damage = str(error)
        return []

    def ask(self, store: Store) -> list[QueueEntry]:
        """Read the page as `entries` does; raises `StoreError` if it cannot be read."""
        return store.fetch(
            self.client_id,
            self.after_pos,
            self.count_max,
            until_pos=self.until_pos,
            bytes_max=self.bytes_max,
        )
