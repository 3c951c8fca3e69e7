"""SocketSet: the sockets of one loop, in one epoll set: clients, listeners, and who says goodbye.

It is the same for whoever drives `flowguard.node.loop.turns` with sockets, whatever its connections
do: the broker's reactor, and the proxy's. They read and send; here is what becomes ready, who is
accepted, whose handshake of TLS or WebSocket has its turn, and who is closed after a last word.
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
"""How long we wait for a peer to close after our last word, so that no reset destroys it."""
LINGERING_MAX: Final = 10_000
READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP

C = TypeVar("C", bound=Carried)

Event = tuple[int, int]
"""A descriptor, and what the kernel says of it."""


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
        """`shake_hands` reads a link once whose handshake is not over, and listens to it again."""
        self._host = host
        self._clock = clock
        self._epoll = select.epoll()
        self._wakeup = eventfd(0)
        self._epoll.register(self._wakeup, READ)
        self.links: dict[int, Link[C]] = {}
        """All that are open, by their descriptor."""
        self.layer_gate: LayerGate[C] = LayerGate(
            settings, clock, host.door, shake_hands, self.close_link, host.shook_hands, self.links
        )
        self.listeners: Listeners[C] = Listeners(
            host, self._epoll, self.links, self.close_link, self.layer_gate
        )
        self._lingering: deque[tuple[float, Link[C]]] = deque()
        self.is_idle = False
        """Whether it waits for events."""
        self.idle_s = 0.0
        """How long others ran, or nobody did, because there was nothing to do here, in all."""
        self._others: OtherTasks | None = None
        """Who is looked at, so that it may wait in trio's place; None: trio waits."""
        self._runnable: set[trio.lowlevel.Task] = set()
        """The same set as theirs."""
        self._their_event: Event = (-1, 0)
        """Trio has something to do for them."""
        self._spare_until_s = 0.0
        self.others = OtherSockets(self._epoll)

    # --- events ------------------------------------------------------------------------------

    async def drive(self, turns: Turns[Event, Any, Any, Any], *, alone: bool = False) -> None:
        """Let turns go on, and wait where they have nothing to do, until cancelled.

        `alone`: in trio's place, of which nobody else in this process must know.
        """
        others = OtherTasks.watch() if alone else None
        if others is not None:
            self._others, self._runnable = others, others.runnable
            self._their_event = (others.descriptor, READ)
            self._epoll.register(others.descriptor, READ)
        try:
            await trio.lowlevel.checkpoint()  # With the next one they are complete.
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
        """How long no other task can run, unless something comes that `poll` waits for, too."""
        if self._runnable or now_s >= self._spare_until_s:
            return 0.0
        return self._spare_until_s - now_s

    def wake(self) -> None:
        """Wait no longer; from any thread."""
        eventfd_write(self._wakeup, 1)

    @property
    def count(self) -> int:
        """How many may be ready at once, at most."""
        return len(self.links) + self.listeners.count + len(self.others) + 1

    def poll(self, count_max: int, stay_s: float) -> list[Event]:
        """Return what is ready now, or becomes so within `stay_s`; handshakes go before."""
        if self.layer_gate.has_work:
            self.layer_gate.run()
        epoll = self._epoll  # A number that is not whole costs it as much as a look at a clock.
        events = epoll.poll(stay_s, count_max) if stay_s else epoll.poll(0, count_max)
        if len(events) == 1 and events[0] == self._their_event:
            self._spare_until_s = 0.0
            return []
        return events

    @property
    def is_silent(self) -> bool:
        """Whether nothing is ready."""
        return all(event == self._their_event for event in self._epoll.poll(0, 2))

    def serve_other(self, fd: int, heard_s: float, now_s: float) -> None:
        """An event of what is no link: a listener, other tasks, or `wake`."""
        if fd == self._wakeup:
            eventfd_read(fd)
        elif fd == self._their_event[0]:
            self._spare_until_s = 0.0
        elif not self.others.serve(fd):
            self.listeners.accept(fd, heard_s, now_s)

    def add(self, link: Link[C]) -> None:
        """One more, with the interest that it says. Raises OSError: the kernel has no room."""
        self._epoll.register(link.fd, link.interest)
        self.links[link.fd] = link

    def set_interest(self, link: Link[C], interest: int) -> None:
        """Look for these events of it from now on."""
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
        except OSError as error:  # The kernel has no room for another watch.
            self.broke(link, error, self._clock())
            return
        link.interest = interest

    # --- bytes -------------------------------------------------------------------------------

    def read(
        self, link: Link[C], size_bytes: int, now_s: float, *, flushes: bool = True
    ) -> bytes | None:
        """Read at most so many bytes, and send what the layer answers; empty: the stream has ended.

        None: there are none now, or the link is broken. `flushes`: False leaves the layer's answer
        to the caller where bytes have come.
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
        """It is closed without a word. Its peer or the kernel has ended it; where the error is none
        of theirs a layer has failed, which is told. The others are served on."""
        link.connection.end(None, now_s)
        self.close_link(link)
        if not isinstance(error, OSError):
            self._host.broke(error)

    # --- layers ------------------------------------------------------------------------------

    def is_left_unread(self, link: Link[C]) -> bool:
        """Whether the handshake of a layer is not over: what has come waits for its gate."""
        layer = link.layer
        assert layer is not None
        if layer.established or link.connection.ended:
            return False
        self.set_interest(link, link.interest & ~READ)
        self.layer_gate.heard(link)
        return True

    def flush_layer(self, link: Link[C], now_s: float) -> bool:
        """Send what the layer has to say; False: nothing more can be sent now."""
        assert link.layer is not None
        try:
            if link.layer.flush():
                return True
        except OSError:
            return True  # Whoever reads or writes next is told.
        except Exception as error:
            self.broke(link, error, now_s)
            return False
        self.set_interest(link, link.interest | WRITE)
        if link.connection.ended:
            self.linger(link, now_s)
        return False

    # --- the end -----------------------------------------------------------------------------

    def say_last(self, link: Link[C], now_s: float) -> None:
        """Everything is sent and the conversation is over: let the peer read it, then close."""
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
        """Close the socket soon, whether or not the peer takes our last word."""
        if link.lingers or not link.connection.may_close:
            return
        link.lingers = True
        self._lingering.append((now_s + LINGER_S, link))
        if len(self._lingering) > LINGERING_MAX:
            self.close_link(self._lingering.popleft()[1])

    def sweep(self, heard_s: float, pressure: Pressure) -> None:
        """The tick: close what has lingered long enough; accept again where listeners rested."""
        while self._lingering and self._lingering[0][0] <= heard_s:
            self.close_link(self._lingering.popleft()[1])
        self.layer_gate.tick(self._clock(), pressure)
        if self.layer_gate.has_work:
            self.wake()
        self.listeners.sweep()

    def close_link(self, link: Link[C]) -> None:
        """Close it at once, without a word; safe to repeat."""
        if link.fd < 0:
            return
        self._forget(link)
        link.sock.close()

    def release(self, link: Link[C]) -> None:
        """Forget an open link; its stream is the caller's."""
        if link.interest:  # Another process may keep the socket open, and thereby its watch.
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
        """Close every socket, without a word."""
        self.listeners.close()
        for link in list(self.links.values()):
            self.close_link(link)
        self._epoll.close()
        close_fd(self._wakeup)
