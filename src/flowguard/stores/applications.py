"""The contract of stores that keep the queues of applications apart from those of devices."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class ApplicationStore(Protocol):
    """A `Store` in which queues of applications wait elsewhere, without a bound but retention.

    For the node they are queues like all others: `Append`, `Sent`, `Release`, `Settle` and `fetch`,
    by the same positions. Whose they are the store knows by `PutSession.is_application`; one with
    another value than before moves what is queued, positions and all, before its commit returns.
    """

    def take_lost(self) -> dict[str, int]:
        """Messages by client id that retention has dropped before they were fetched, since it was
        asked last. Cheap, never blocks, from any thread."""
