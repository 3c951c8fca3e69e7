"""SocketSet: the sockets of one loop, in one epoll set: clients, listeners, lingering connections.

Both the broker's reactor and the proxy's use it to drive `flowguard.node.loop.turns`. They read and
send. This module polls for events, accepts connections, runs TLS and WebSocket handshakes, and
closes sockets after their last bytes.
"""

import select
from collections import deque
from collections.abc import Callable
from os import close as close_fd
from os import eventfd, eventfd_read, eventfd_write
from socket import SHUT_WR
from typing import Any, Final, Generic, TypeVar, final

import trio

from flowguard.broker.layers.layer_gate import LayerGate
from flowguard.broker.sockets.link import Carried, Link
from flowguard.broker.sockets.listeners import Host, Listeners
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.sockets.other_sockets import OtherSockets
from flowguard.broker.sockets.other_tasks import OtherTasks
from flowguard.config import FlowSettings
from flowguard.flow.load.signals import Pressure
from flowguard.node.loop.turns import IDLE, TURN, Turns

LINGER_S: Final = 2.0
"""Time for a peer to close after our last packet, so that no reset destroys it, seconds."""
LINGERING_MAX: Final = 10_000
READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP

C = TypeVar("C", bound=Carried)

Event = tuple[int, int]
"""A descriptor and its epoll events."""


@final
class SocketSet(Generic[C]):
    """The sockets whose connections are `C`."""

    def __init__(
        self,
        host: Host[C],
        settings: FlowSettings,
        clock: Callable[[], float],
        shake_hands: Callable[[Link[C], float], None],
    ) -> None:
        """`shake_hands` reads once from a link with an unfinished handshake, and watches it
        again."""
        self._host = host
        self._clock = clock
        self._epoll = select.epoll()
        self._wakeup = eventfd(0)
        self._epoll.register(self._wakeup, READ)
        self.links: dict[int, Link[C]] = {}
        """All open links, by descriptor."""
        self.layer_gate: LayerGate[C] = LayerGate(
            settings, clock, host.door, shake_hands, self.close_link, host.shook_hands, self.links
        )
        self.listeners: Listeners[C] = Listeners(
            host, self._epoll, self.links, self.close_link, self.layer_gate
        )
        self._lingering: deque[tuple[float, Link[C]]] = deque()
        self.is_idle = False
        """True if it waits for events."""
        self.idle_s = 0.0
        """Total time in which this loop had no work, seconds."""
        self._others: OtherTasks | None = None
        """The other tasks, watched so that this one may wait in trio's place; otherwise None."""
        self._runnable: set[trio.lowlevel.Task] = set()
        """The runnable ones of these tasks: the set of `OtherTasks`."""
        self._their_event: Event = (-1, 0)
        """The event that trio has work for other tasks."""
        self._spare_until_s = 0.0
        self.others = OtherSockets(self._epoll)

    # --- events ------------------------------------------------------------------------------

    async def drive(self, turns: Turns[Event, Any, Any, Any], *, alone: bool = False) -> None:
        """Run turns until cancelled, and wait if they have nothing to do.

        `alone`: wait in trio's place; only one loop of a process may do so.
        """
        others = OtherTasks.watch() if alone else None
        if others is not None:
            self._others, self._runnable = others, others.runnable
            self._their_event = (others.descriptor, READ)
            self._epoll.register(others.descriptor, READ)
        try:
            await trio.lowlevel.checkpoint()  # After the next checkpoint the tasks are complete.
            await self._let_others_run()
            await self._drive(turns)
        finally:
            if others is not None:
                others.close()

    async def _drive(self, turns: Turns[Event, Any, Any, Any]) -> None:
        turns.resume()
        while True:
            following = turns.go_on()
            if following is TURN:
                continue
            if following is IDLE:
                await self._wait()
            else:
                await self._let_others_run()
            turns.resume()

    async def _wait(self) -> None:
        began_s = self._clock()
        self.is_idle = True
        if self._others is None:
            await trio.lowlevel.wait_readable(self._epoll)
        else:
            await self._let_others_run()
        self.is_idle = False
        self.idle_s += self._clock() - began_s

    async def _let_others_run(self) -> None:
        others = self._others
        await trio.lowlevel.checkpoint()
        if others is None or self._runnable:
            # Tasks run in any order: a single checkpoint may end with ours.
            await trio.lowlevel.checkpoint()
        if others is not None and not self._runnable:
            self._spare_until_s = self._clock() + others.rest_s()

    def spare_s(self, now_s: float) -> float:
        """Return how long no other task can run, unless an event comes that `poll` also watches."""
        if self._runnable or now_s >= self._spare_until_s:
            return 0.0
        return self._spare_until_s - now_s

    def wake(self) -> None:
        """End the wait; may be called from any thread."""
        eventfd_write(self._wakeup, 1)

    @property
    def count(self) -> int:
        """Maximum number of events that may be ready at once."""
        return len(self.links) + self.listeners.count + len(self.others) + 1

    def poll(self, count_max: int, stay_s: float) -> list[Event]:
        """Return the events that are ready now or within `stay_s`; handshakes run first."""
        if self.layer_gate.has_work:
            self.layer_gate.run()
        epoll = self._epoll  # A float argument costs epoll as much as reading a clock.
        events = epoll.poll(stay_s, count_max) if stay_s else epoll.poll(0, count_max)
        if len(events) == 1 and events[0] == self._their_event:
            self._spare_until_s = 0.0
            return []
        return events

    @property
    def is_silent(self) -> bool:
        """True if no event is ready."""
        return all(event == self._their_event for event in self._epoll.poll(0, 2))

    def serve_other(self, fd: int, heard_s: float, now_s: float) -> None:
        """Handle an event without a link: of a listener, other tasks, or `wake`."""
        if fd == self._wakeup:
            eventfd_read(fd)
        elif fd == self._their_event[0]:
            self._spare_until_s = 0.0
        elif not self.others.serve(fd):
            self.listeners.accept(fd, heard_s, now_s)

    def add(self, link: Link[C]) -> None:
        """Add a link with its interest. Raises OSError if the kernel has no memory for it."""
        self._epoll.register(link.fd, link.interest)
        self.links[link.fd] = link

    def set_interest(self, link: Link[C], interest: int) -> None:
        """Watch these events of the link from now on."""
        if interest == link.interest or link.fd < 0:
            return
        # A socket without interest leaves the set: epoll would report its hang-up for ever.
        try:
            if not interest:
                self._epoll.unregister(link.fd)
            elif not link.interest:
                self._epoll.register(link.fd, interest)
            else:
                self._epoll.modify(link.fd, interest)
        except OSError as error:  # The kernel has no memory for another watch.
            self.broke(link, error, self._clock())
            return
        link.interest = interest

    # --- bytes -------------------------------------------------------------------------------

    def read(
        self, link: Link[C], size_bytes: int, now_s: float, *, flushes: bool = True
    ) -> bytes | None:
        """Read at most `size_bytes` and send the layer's answer; return b"" at the end of the
        stream.

        Returns None if no data came or the link is broken. If `flushes` is False and data came, the
        caller sends the layer's answer.
        """
        try:
            data = link.read(size_bytes)
        except Exception as error:
            self.broke(link, error, now_s)
            return None
        if link.layer is not None and (flushes or not data):
            self.flush_layer(link, now_s)
        return data

    def broke(self, link: Link[C], error: Exception, now_s: float) -> None:
        """Close a link without any packet. An OSError comes from its peer or the kernel. Any other
        error means that a layer has failed; it is reported, and other links are still served."""
        link.connection.end(None, now_s)
        self.close_link(link)
        if not isinstance(error, OSError):
            self._host.broke(error)

    # --- layers ------------------------------------------------------------------------------

    def is_left_unread(self, link: Link[C]) -> bool:
        """True if a layer's handshake is unfinished; its data then wait for the handshake gate."""
        layer = link.layer
        assert layer is not None
        if layer.established or link.connection.ended:
            return False
        self.set_interest(link, link.interest & ~READ)
        self.layer_gate.heard(link)
        return True

    def flush_layer(self, link: Link[C], now_s: float) -> bool:
        """Send the layer's pending output; return False if nothing more can be sent now."""
        assert link.layer is not None
        try:
            if link.layer.flush():
                return True
        except OSError:
            return True  # The next read or write raises it again.
        except Exception as error:
            self.broke(link, error, now_s)
            return False
        self.set_interest(link, link.interest | WRITE)
        if link.connection.ended:
            self.linger(link, now_s)
        return False

    # --- the end -----------------------------------------------------------------------------

    def say_last(self, link: Link[C], now_s: float) -> None:
        """Close a link whose data are all sent, after its peer has had time to read them."""
        if link.peer_closed:
            self.close_link(link)
            return
        try:
            link.sock.shutdown(SHUT_WR)
        except Exception as error:
            self.broke(link, error, now_s)
            return
        self.set_interest(link, READ)
        self.linger(link, now_s)

    def linger(self, link: Link[C], now_s: float) -> None:
        """Close the socket soon, even if the peer does not read the last bytes."""
        if link.lingers or not link.connection.may_close:
            return
        link.lingers = True
        self._lingering.append((now_s + LINGER_S, link))
        if len(self._lingering) > LINGERING_MAX:
            self.close_link(self._lingering.popleft()[1])

    def sweep(self, heard_s: float, pressure: Pressure) -> None:
        """Tick: close links that have lingered long enough; let resting listeners accept again."""
        while self._lingering and self._lingering[0][0] <= heard_s:
            self.close_link(self._lingering.popleft()[1])
        self.layer_gate.tick(self._clock(), pressure)
        if self.layer_gate.has_work:
            self.wake()
        self.listeners.sweep()

    def close_link(self, link: Link[C]) -> None:
        """Close a link at once, without any packet; safe to repeat."""
        if link.fd < 0:
            return
        self._forget(link)
        link.sock.close()

    def release(self, link: Link[C]) -> None:
        """Remove an open link; the caller keeps its stream."""
        if link.interest:  # Another process may keep the socket, and thereby its watch, open.
            self._epoll.unregister(link.fd)
        self._forget(link)

    def _forget(self, link: Link[C]) -> None:
        del self.links[link.fd]
        self.listeners.newcomers.pop(link, None)
        link.fd = -1
        link.interest = 0
        if link.doorway is not None:
            link.doorway.count -= 1
        if link.layer is not None:
            self.layer_gate.left(link)
        link.connection.transport = None
        self._host.closed()

    def listen(self, doorway: Doorway, places: int) -> None:
        """Accept on this listening socket, as long as all clients have less than `places`."""
        self.listeners.listen(doorway, places)

    def close(self) -> None:
        """Close every socket, without any packet."""
        self.listeners.close()
        for link in list(self.links.values()):
            self.close_link(link)
        self._epoll.close()
        close_fd(self._wakeup)
