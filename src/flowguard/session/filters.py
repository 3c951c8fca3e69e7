"""Filters: the subscriptions of one session. Nearly every client has one; a dict would take four
times as much."""

from collections.abc import Iterable, Iterator
from typing import final

from mypy_extensions import mypyc_attr

from flowguard.types import SubscriptionOptions


@mypyc_attr(acyclic=True)
@final
class Filters:
    """Options by filter, in the order in which they came; one replaced keeps its place."""

    __slots__ = ("_many", "_only", "_options")

    def __init__(self) -> None:
        self._only = ""
        self._options: SubscriptionOptions | None = None
        """Of the only one."""
        self._many: dict[str, SubscriptionOptions] | None = None
        """All of them, once there have been two."""

    def get(self, filter: str) -> SubscriptionOptions | None:
        """The options of `filter`; None: it is not subscribed."""
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
        """No longer subscribe to `filter`, which is."""
        assert self.get(filter) is not None
        if self._many is not None:
            del self._many[filter]
        else:
            self._only, self._options = "", None

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
