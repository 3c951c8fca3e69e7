"""OtherSockets: descriptors in the loop's epoll set that are neither clients nor listeners."""

import select
from collections.abc import Callable
from typing import final


@final
class WatchedDescriptor:
    __slots__ = ("call", "interest")

    def __init__(self, interest: int, call: Callable[[], None]) -> None:
        self.interest = interest
        self.call = call


@final
class OtherSockets:
    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._sockets: dict[int, WatchedDescriptor] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def watch(self, fd: int, interest: int, call: Callable[[], None]) -> None:
        """Call `call` for each of these events, until `unwatch`; `call` must not raise.

        Raises OSError.
        """
        self._epoll.register(fd, interest)
        self._sockets[fd] = WatchedDescriptor(interest, call)

    def rewatch(self, fd: int, interest: int) -> None:
        """Watch for these events from now on. Raises OSError."""
        other = self._sockets[fd]
        if interest == other.interest:
            return
        if not interest:  # With an empty interest epoll would report a hang-up for ever.
            self._epoll.unregister(fd)
        elif not other.interest:
            self._epoll.register(fd, interest)
        else:
            self._epoll.modify(fd, interest)
        other.interest = interest

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor, before it is closed; safe to repeat."""
        other = self._sockets.pop(fd, None)
        if other is not None and other.interest:
            self._epoll.unregister(fd)

    def serve(self, fd: int) -> bool:
        """Call the callback of a descriptor; return False if it is not watched."""
        other = self._sockets.get(fd)
        if other is None:
            return False
        other.call()
        return True
