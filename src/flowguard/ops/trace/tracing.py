"""Tracing: chooses the connections of all traces of a node, and adds what is decided about them."""

from collections.abc import Callable
from itertools import islice
from typing import Final, ParamSpec, final

from flowguard.broker.logs.error_log import address_of
from flowguard.broker.sockets.link import Link
from flowguard.flow import Reason
from flowguard.node.node import Node
from flowguard.ops.lists.clients import row_of
from flowguard.ops.trace.lines import TraceLines
from flowguard.ops.trace.tap import Tap
from flowguard.ops.trace.words import code_text, fields_of
from flowguard.session.connection import ServerConnection
from flowguard.session.conversation import Conversation
from flowguard.session.lives import End
from flowguard.session.states import State
from flowguard.types import ReasonCode

CONNECTIONS_MAX: Final = 100
"""Connections of one trace at a time."""
SLICE: Final = 500
"""Sessions that are compared with a pattern in one step of the event loop."""

P = ParamSpec("P")


@final
class Tracing:
    """The traces of a node. Without one, nothing of the node calls it."""

    def __init__(self, node: Node, clock: Callable[[], float]) -> None:
        self._node = node
        self._clock = clock
        self.traces: list[TraceLines] = []
        self._taps: dict[ServerConnection, Tap] = {}
        self._release: Callable[[], None] = lambda: None

    def begin(self, trace: TraceLines) -> Callable[[], bool]:
        """Trace clients that connect from now on. Return a function that finds those that are
        connected, a slice of the sessions at a time; it returns True while slices are left."""
        if not self.traces:
            self._release = self._listen()
        self.traces.append(trace)
        sessions = self._node.registry.sessions
        ids = iter([trace.pattern] if trace.is_exact else list(sessions))

        def step() -> bool:
            part = list(islice(ids, SLICE))
            for client_id in part:
                if trace.is_for(client_id):
                    self._add(trace, client_id)
            return len(part) == SLICE

        return step

    def end(self, trace: TraceLines) -> None:
        self.traces.remove(trace)
        for tap in list(self._taps.values()):
            if trace in tap.traces:
                tap.traces.remove(trace)
            self._sweep(tap)
        if not self.traces:
            self._release()

    def look(self, trace: TraceLines) -> None:
        """Add what has been decided about its connections since the last look."""
        for tap in list(self._taps.values()):
            if trace in tap.traces:
                self._look_at(tap)
            self._sweep(tap)

    def _look_at(self, tap: Tap) -> None:
        for event, fields in tap.decisions.look(self._node, tap.connection, self._clock()):
            tap.tell(event, fields)

    def _sweep(self, tap: Tap) -> None:
        """Remove a tap that is no longer needed."""
        if tap.is_closed or not tap.traces:
            tap.remove()
            del self._taps[tap.connection]

    def _add(self, trace: TraceLines, client_id: str) -> None:
        """Trace the connection of a client, if it has one."""
        session = self._node.registry.sessions.get(client_id)
        if session is None or session.outbound is None:
            return
        connection = session.outbound.connection
        assert isinstance(connection, ServerConnection)
        tap = self._taps.get(connection)
        is_new = tap is None
        if tap is not None and trace in tap.traces:
            return
        tap = self._tap(trace, connection)
        if tap is not None:
            trace.put(self._clock(), "traced", client_id, dict(row_of(session)))
            if is_new:
                tap.show_received(connection.input.decoder.rest())

    def _tap(self, trace: TraceLines, connection: ServerConnection) -> Tap | None:
        """Add a connection to a trace, or return None if it has too many."""
        link = connection.transport
        if not isinstance(link, Link):
            return None
        if sum(trace in tap.traces for tap in self._taps.values()) >= CONNECTIONS_MAX:
            trace.untraced += 1
            return None
        tap = self._taps.get(connection)
        if tap is None:
            tap = self._taps[connection] = Tap(connection, link, self._clock)
        tap.traces.append(trace)
        return tap

    # --- callbacks of the node ---------------------------------------------------------------

    def _listen(self) -> Callable[[], None]:
        """Be called besides those that the node calls; return a function that ends it."""
        node, lives, rejections = self._node, self._node.counters.lives, self._node.state.rejections
        before = lives.on_connected, lives.on_ended, node.on_turned_away
        rejected = rejections.on_publish, rejections.on_subscription
        lives.on_connected = self._both(before[0], self._connected)
        lives.on_ended = self._both(before[1], self._ended)
        node.on_turned_away = self._both(before[2], self._turned_away)
        rejections.on_publish = self._both(rejected[0], self._publish_rejected)
        rejections.on_subscription = self._both(rejected[1], self._filter_rejected)

        def release() -> None:
            lives.on_connected, lives.on_ended, node.on_turned_away = before
            rejections.on_publish, rejections.on_subscription = rejected

        return release

    def _both(
        self, first: Callable[P, None] | None, second: Callable[P, None]
    ) -> Callable[P, None]:
        """Return a function that calls both; an error of the second only ends the traces."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            if first is not None:
                first(*args, **kwargs)
            try:
                second(*args, **kwargs)
            except Exception as error:
                for trace in self.traces:
                    trace.error = error

        return call

    def _connected(self, connection: Conversation, present: bool) -> None:
        assert isinstance(connection, ServerConnection)
        packet = connection.connect_packet
        client_id = connection.client_id or ""
        traces = [trace for trace in self.traces if trace.is_for(client_id)]
        taps = {tap for trace in traces if (tap := self._tap(trace, connection)) is not None}
        for tap in taps:
            if packet is not None:
                named = {"packet": "CONNECT", "address": address_of(connection)}
                tap.tell("received", named | fields_of(packet, 0))
            tap.tell("accepted", {"session_present": present})
            tap.show_received(connection.input.decoder.rest())

    def _ended(self, connection: Conversation, client_id: str, end: End) -> None:
        lasted_s = round(end.lasted_s, 3)
        fields = {"reason": end.reason, "by": end.by, "connected_s": lasted_s, "why": end.why}
        self._tell(client_id, "ended", **fields)

    def _turned_away(self, connection: ServerConnection, reason: ReasonCode, why: str) -> None:
        fields = {"code": code_text(reason), "why": why, "address": address_of(connection)}
        is_client = connection.state is State.CONNECTED
        event = "protocol error" if is_client else "CONNECT rejected"
        self._tell(connection.client_id or "", event, **fields)

    def _publish_rejected(
        self, client_id: str, user: str, topic: str, reason: Reason | ReasonCode
    ) -> None:
        self._tell(client_id, "PUBLISH rejected", topic=topic, user=user, reason=_text(reason))

    def _filter_rejected(
        self, client_id: str, user: str, filter: str, reason: Reason | ReasonCode
    ) -> None:
        self._tell(client_id, "filter rejected", filter=filter, user=user, reason=_text(reason))

    def _tell(self, client_id: str, event: str, **fields: object) -> None:
        present = {name: value for name, value in fields.items() if value != ""}
        for trace in self.traces:
            if trace.is_for(client_id) and trace.has_room():
                trace.put(self._clock(), event, client_id, present)


def _text(reason: Reason | ReasonCode) -> str:
    return code_text(reason) if isinstance(reason, ReasonCode) else str(reason)
