"""The contract of stores that keep the queues of applications apart from those of devices."""

from typing import Protocol, runtime_checkable

from flowguard.stores.base import Store
from flowguard.stores.group_feed import GroupFeed


@runtime_checkable
class ApplicationStore(Protocol):
    """A `Store` in which queues of applications wait elsewhere, without a bound but retention.

    For the node they are queues like all others: `Append`, `Sent`, `Release`, `Settle` and `fetch`,
    by the same positions; and `Forward`. Whose they are the store knows by
    `PutSession.is_application`; one with another value than before moves what is queued, positions
    and all, before its commit returns.

    It may take nothing for long, and devices need not wait for that: what concerns no application
    is better committed to `devices`, from a second thread. What enters both for one name does so in
    turns: first all of it in one of them, then in the other.
    """

    @property
    def devices(self) -> Store:
        """Where everything else is; the one that is closed is this one."""

    @property
    def groups(self) -> GroupFeed | None:
        """Shared subscriptions that other brokers have, too; None: there are none."""

    def owed_pos(self, client_id: str) -> int:
        """The highest position of `Forward` that an application's queue has; 0: none."""

    def take_lost(self) -> dict[str, int]:
        """Messages by client id that retention has dropped before they were fetched, since it was
        asked last. Cheap, never blocks, from any thread."""
