"""Fetch: a question to the store, for a page of what waits there for one client or group."""

from typing import TYPE_CHECKING, final

from flowguard.errors import NotNowError, StoreError
from flowguard.records import QueueEntry
from flowguard.stores import Store

if TYPE_CHECKING:
    from flowguard.session.owner import QueueOwner


@final
class Fetch:
    """A page of a backlog that the store is to be asked for."""

    # No dataclass: mypyc would look for the class QueueOwner, whose module has not begun then.
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
        owner: "QueueOwner",
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
        self.sent = {pos for pos in owner.positions.values() if pos > after_pos}
        """In flight, though the first that waits is older: retained messages."""

    def entries(self, store: Store) -> list[QueueEntry]:
        """Ask; blocks as the store does. None come where there is `damage`.

        Raises `NotNowError`: ask again later.
        """
        try:
            return store.fetch(
                self.client_id,
                self.after_pos,
                self.count_max,
                until_pos=self.until_pos,
                bytes_max=self.bytes_max,
            )
        except NotNowError:
            raise
        except StoreError as error:
            self.damage = str(error)
        return []
