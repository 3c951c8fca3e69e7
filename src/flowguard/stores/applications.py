"""The contract of stores that separate the queues of applications from those of devices."""

from typing import Protocol, runtime_checkable

from flowguard.stores.base import Store
from flowguard.stores.group_feed import GroupFeed


@runtime_checkable
class ApplicationStore(Protocol):
    """A `Store` with the queues of applications in another system, bounded only by retention.

    The node uses them like all other queues: `Append`, `Sent`, `Release`, `Settle` and `fetch` with
    the same positions; and `Forward`. `PutSession.is_application` marks their sessions. If its
    value changes, the queue moves, with its positions, before the commit returns.

    The other system may be unavailable for long. So that devices need not wait for it, commit
    operations on devices to `devices`, from a second thread. Operations on one session must not be
    committed to both at the same time.
    """

    @property
    def devices(self) -> Store:
        """The store of everything else. Close this store, not `devices`."""

    @property
    def groups(self) -> GroupFeed | None:
        """Shared subscriptions that several brokers have, or None if not configured."""

    def owed_pos(self, client_id: str) -> int:
        """Return the highest position of `Forward` in an application's queue, 0 if none."""

    def take_lost(self) -> dict[str, int]:
        """Return the numbers of messages that retention has dropped before they were fetched, since
        the last call, by client id. Cheap, never blocks, from any thread."""
