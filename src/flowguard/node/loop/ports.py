"""Ports of a node: its half of the ports of a loop; a driver adds sockets and store."""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from mypy_extensions import mypyc_attr

from flowguard.node.loop.turns import Ports, Turns
from flowguard.node.node import Answered, Node
from flowguard.session.connection import ServerConnection
from flowguard.session.outbound.fetch import Fetch
from flowguard.session.outbound.messages import Outbound

E = TypeVar("E")
Piece = Answered | Outbound
"""A piece of a backlog: a page from the store, or a connection that can send more of one."""


@mypyc_attr(allow_interpreted_subclasses=True)
class NodePorts(Ports[E, ServerConnection, Piece], Generic[E]):
    """The ports for conversations and work."""

    def __init__(self, node: Node, clock: Callable[[], float], *, immediate: bool) -> None:
        self._node = node
        self._clock = clock
        self.turns: Turns[E, ServerConnection, Fetch, Piece] = Turns(
            self, clock, node.journal, node.pages, node.state.chores, immediate=immediate
        )

    @property
    def has_runnable(self) -> bool:
        return bool(self._node.state.runnable)

    def take_runnable(self) -> list[ServerConnection]:
        state = self._node.state
        runnable = cast("list[ServerConnection]", state.runnable)
        if runnable:
            state.runnable = []
        return runnable

    def has_room(self, connection: ServerConnection) -> bool:
        inbound = connection.inbound
        return connection.ended or inbound is None or inbound.room() > 0

    def run_again(self, connection: ServerConnection, now_s: float) -> bool:
        connection.queued = False
        if connection.ended:
            return False
        connection.run(now_s)
        return True

    def leave(self) -> list[ServerConnection]:
        node = self._node
        acknowledgements = node.router.acknowledgements
        if acknowledgements.at_once_count:
            acknowledgements.leave(self._clock())
        dirty = cast("list[ServerConnection]", node.state.dirty)
        if dirty:
            node.state.dirty = []
        return dirty

    @property
    def has_work(self) -> bool:
        return self._node.has_work

    def admit(self, now_s: float) -> None:
        self._node.turn(now_s)

    def replay(self, piece: Piece, now_s: float) -> None:
        node = self._node
        sent = node.counters.publish_sent
        node.replay(piece, now_s)
        node.guard.window.worked(node.counters.publish_sent - sent, movable=False)
