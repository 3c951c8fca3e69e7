"""Input: what a peer has sent and nobody has handled, and whether more of it is read.

It is read ahead a little while it has to wait, for the control lane; what is kept counts against
the node's input budget; and who takes none of the answers that it asked for is not read.
"""

from typing import Final

from flowguard.bounds import INPUT_FREE_BYTES
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Connect
from flowguard.flow import Pause
from flowguard.session.conversation import Conversation
from flowguard.session.handshake import connect_content_bytes
from flowguard.session.inbound import Inbound
from flowguard.session.node_state import NodeState
from flowguard.session.outbound import Outbound
from flowguard.session.states import CONNECTING, ENDED, OPENED, State
from flowguard.types import MQTT_5

LOOKAHEAD_BYTES: Final = 64 * 1024
"""A conversation that may not go on is read this far ahead, for the control lane."""
READ_BYTES_MAX: Final = 64 * 1024
READ_BYTES_MIN: Final = INPUT_FREE_BYTES
"""Read at once, at most: even while the node has no memory left for what it brings."""
READS: Final = 64
"""So many connections can be read before somebody looks again what memory is left."""


class Input(Conversation):
    """The lower half of a `ServerConnection`."""

    __slots__ = (
        "_decoder",
        "_eof",
        "_input_bytes",
        "_unweighed_bytes",
        "connect_packet",
        "drained",
        "inbound",
        "outbound",
        "queued",
        "state",
    )

    def __init__(self, node: NodeState) -> None:
        limits = node.settings.session
        self.state: State = OPENED
        self._decoder = PacketDecoder(limits.packet_size_max, strict=not limits.control_characters)
        self._input_bytes = 0
        """What the node's input budget holds for this connection."""
        self._unweighed_bytes = 0
        """Never less than what is buffered: small chunks need no closer look."""
        self.connect_packet: Connect | None = None
        self.inbound: Inbound | None = None
        self._eof = False
        self.drained = False
        """True while a connected client has nothing complete waiting: the common case, at once."""
        self.queued = False  # True while the connection is in the node's `runnable`.
        self.outbound = Outbound(self, node, MQTT_5)

    @property
    def ended(self) -> bool:
        return self.state is ENDED

    @property
    def _node(self) -> NodeState:
        return self.outbound.node

    @property
    def wants_read(self) -> bool:
        """Whether more bytes are welcome; False is back-pressure."""
        if self.outbound.outbox.owes_too_much:
            return False
        if self.drained:
            return True
        if self.state is ENDED or self._eof:
            return False
        return not self.held or self._stops_ahead() is None

    def _stops_ahead(self) -> Pause | None:
        """Why nothing more is read ahead of packets that wait; None: more is."""
        if self._decoder.buffered_bytes >= LOOKAHEAD_BYTES:
            return Pause.READ_AHEAD
        return Pause.INPUT_BYTES if self._input_bytes and self._room_ahead_bytes <= 0 else None

    def pauses(self) -> list[Pause]:
        """Why what its client sent, or would send, has to wait; empty: it need not."""
        found = [Pause.SOCKET] if self.outbound.outbox.owes_too_much else []
        inbound = self.inbound
        if self.state is CONNECTING:
            found.append(Pause.CONNACK)
        elif inbound is not None and not self.drained:
            pause = inbound.pause()
            if pause is not None:
                found.append(pause)
        ahead = self._stops_ahead() if found and self.held else None
        return found if ahead is None else [*found, ahead]

    @property
    def _room_ahead_bytes(self) -> int:
        """Left for what may wait: half of the input budget, so that packets can be completed."""
        budget = self._node.input_holders.budget
        return budget.limit_bytes // 2 - budget.used_bytes

    def read_bytes_max(self, *, blocked: bool = False) -> int:
        """How much to read at once, so that what many bring together finds room; 0: nothing, from a
        peer that takes none of what it was sent (`blocked`) and owes too much for it already."""
        if blocked and not (self.state is ENDED or self.outbound.outbox.may_owe_more):
            return 0
        room_bytes = self._room_ahead_bytes
        if self._input_bytes and not self.held:
            room_bytes += self._node.input_holders.budget.limit_bytes // 2
        return max(READ_BYTES_MIN, min(READ_BYTES_MAX, room_bytes // READS))

    @property
    def held(self) -> bool:
        """True while complete packets may wait in the buffer for a window, a turn or a CONNACK."""
        if self.queued or self.state is CONNECTING:
            return True
        return self.inbound is not None and not self.drained and not self.inbound.room()

    @property
    def blocked(self) -> bool:
        """True while a PUBLISH of the client waits for room in a subscriber's queue."""
        return self.inbound is not None and self.inbound.blocked

    def _weigh(self, now_s: float) -> None:
        """Charge what stays of all that was received to the node's input budget.

        Where that is spent, who wants much and stands still has to go: if all waited for room, no
        packet would ever be complete. Who is paused anyway just is not read on.
        """
        if self.state is ENDED:
            return
        kept_bytes = self._decoder.compact()
        if self.inbound is not None:
            kept_bytes += self.inbound.held_bytes
        elif self.connect_packet is not None:
            kept_bytes += connect_content_bytes(self.connect_packet)
        self._unweighed_bytes = kept_bytes
        input_bytes = max(0, kept_bytes - INPUT_FREE_BYTES)
        if not input_bytes and not self._input_bytes:
            return
        holders = self._node.input_holders
        claim_bytes = None if self.held else self._decoder.declared_bytes
        holders.hold(self, input_bytes, now_s, claim_bytes=claim_bytes)
        grown, self._input_bytes = input_bytes > self._input_bytes, input_bytes
        while grown and holders.is_over:
            holder = holders.costliest(now_s)
            if holder is None:
                break
            holder.give_way(now_s)

    def _forget_input(self, now_s: float) -> None:
        """Forget bytes that will never be decoded; the peer may be slow to close."""
        if self._input_bytes:
            self._node.input_holders.hold(self, 0, now_s, claim_bytes=None)
            self._input_bytes = 0
        self._decoder.clear()
