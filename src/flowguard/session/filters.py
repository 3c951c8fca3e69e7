"""Filters: the subscriptions of one session, and the retained messages that they are owed.

Nearly every client has one filter; a dict would take four times as much memory.
"""

from collections.abc import Iterable, Iterator
from typing import final

from mypy_extensions import mypyc_attr

from flowguard.records import PutSubscription
from flowguard.session.node_state import NodeState
from flowguard.session.state_bytes import StateAccount, owed_bytes
from flowguard.types import SubscriptionOptions


@mypyc_attr(acyclic=True)
@final
class Filters:
    """Options by filter, in order of subscription; a replaced one keeps its place."""

    __slots__ = ("_many", "_only", "_options", "retained_after")

    def __init__(self) -> None:
        self._only = ""
        self._options: SubscriptionOptions | None = None
        """Options of the only filter."""
        self._many: dict[str, SubscriptionOptions] | None = None
        """All filters, once there have been two."""
        self.retained_after: dict[str, str] | None = None
        """Topic by filter after which retained messages at QoS 1 or 2 are still owed, or "" for all
        topics. The store has it with the subscription."""

    def get(self, filter: str) -> SubscriptionOptions | None:
        """Return the options of `filter`, or None if it is not subscribed."""
        if self._many is not None:
            return self._many.get(filter)
        return self._options if filter == self._only else None

    def put(self, filter: str, options: SubscriptionOptions) -> None:
        if self._many is not None:
            self._many[filter] = options
        elif self._options is None or filter == self._only:
            self._only, self._options = filter, options
        else:
            self._many = {self._only: self._options, filter: options}
            self._only, self._options = "", None

    def drop(self, filter: str) -> None:
        """Remove `filter`, which must be subscribed."""
        assert self.get(filter) is not None
        if self._many is not None:
            del self._many[filter]
        else:
            self._only, self._options = "", None

    def owe_retained(
        self, filter: str, after: str | None, account: StateAccount, node: NodeState
    ) -> None:
        """Owe `filter` the retained messages of topics after `after`, or none if it is None."""
        owed = self.retained_after
        before = None if owed is None else owed.get(filter)
        if after is not None:
            if owed is None:
                owed = self.retained_after = {}
            owed[filter] = after
        elif owed is not None and before is not None:
            del owed[filter]
            if not owed:
                self.retained_after = None
        more_bytes = owed_bytes(after) - owed_bytes(before)
        if more_bytes > 0:  # Bounded: the subscription was admitted.
            account.restore(more_bytes, node)
        elif more_bytes:
            account.charge(more_bytes, node)

    def is_owed(self, filter: str) -> bool:
        """Return True if retained messages are owed to `filter`."""
        return self.retained_after is not None and filter in self.retained_after

    def stored(self, client_id: str, filter: str) -> PutSubscription:
        """Return the operation that stores a filter as it is."""
        options, owed = self.get(filter), self.retained_after
        assert options is not None
        return PutSubscription(client_id, filter, options, owed.get(filter) if owed else None)

    def items(self) -> Iterable[tuple[str, SubscriptionOptions]]:
        if self._many is not None:
            return self._many.items()
        return () if self._options is None else ((self._only, self._options),)

    def __iter__(self) -> Iterator[str]:
        if self._many is not None:
            return iter(self._many)
        return iter(() if self._options is None else (self._only,))

    def __contains__(self, filter: str) -> bool:
        return self.get(filter) is not None

    def __len__(self) -> int:
        if self._many is not None:
            return len(self._many)
        return 0 if self._options is None else 1
