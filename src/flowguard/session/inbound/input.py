"""Input: bytes that a peer has sent and the broker has not handled, and their account.

A connection that has to wait is read ahead a little, for the control lane. Buffered bytes count
against the node's input budget.
"""

from typing import Final, final

from mypy_extensions import i32, mypyc_attr

from flowguard.bounds import INPUT_FREE_BYTES
from flowguard.codec.decoder import PacketDecoder
from flowguard.flow import Pause
from flowguard.session.conversation import Conversation
from flowguard.session.node_state import NodeState

LOOKAHEAD_BYTES: Final = 64 * 1024
"""Bytes that are read ahead of a connection that has to wait, for the control lane."""
READ_BYTES_MAX: Final = 64 * 1024
READ_BYTES_MIN: Final = INPUT_FREE_BYTES
"""Bytes that may be read at once even while the node has no memory left for input."""
READS: Final = 64
"""Connections that may be read before the free memory is checked again."""
PROGRESS_BYTES: Final = INPUT_FREE_BYTES
"""Bytes of an incomplete packet that count as activity like a whole packet. A large packet may take
long on a slow line, and single bytes keep no connection alive."""


@mypyc_attr(acyclic=True)
@final
class Input:
    """The input of one connection."""

    __slots__ = ("charged_bytes", "decoder", "has_ended", "unweighed_bytes")

    def __init__(self, node: NodeState) -> None:
        limits = node.settings.session
        self.decoder = PacketDecoder(limits.packet_size_max, strict=not limits.control_characters)
        self.charged_bytes: i32 = 0
        """Bytes that the node's input budget holds for this connection."""
        self.unweighed_bytes: i32 = 0
        """Upper bound of the buffered bytes; small chunks are not counted more exactly."""
        self.has_ended = False
        """True if the peer sends no more."""

    def stops_ahead(self, node: NodeState) -> Pause | None:
        """Return the reason why reading ahead of waiting packets stops, or None."""
        if self.decoder.buffered_bytes >= LOOKAHEAD_BYTES:
            return Pause.READ_AHEAD
        return Pause.INPUT_BYTES if self.charged_bytes and room_ahead_bytes(node) <= 0 else None

    def read_bytes_max(self, node: NodeState, *, is_held: bool) -> int:
        """Return how much to read at once, so that all connections together stay in the budget."""
        room_bytes = room_ahead_bytes(node)
        if self.charged_bytes and not is_held:
            room_bytes += node.input_holders.budget.limit_bytes // 2
        return max(READ_BYTES_MIN, min(READ_BYTES_MAX, room_bytes // READS))

    def has_progressed(self, size_bytes: int) -> bool:
        """Return True if the last `size_bytes` have begun another piece of an incomplete packet.

        The first `PROGRESS_BYTES` do not count.
        """
        last = self.decoder.buffered_bytes - 1
        return last // PROGRESS_BYTES > max(0, last - size_bytes) // PROGRESS_BYTES

    def weigh(
        self,
        conversation: Conversation,
        packets_bytes: int,
        node: NodeState,
        now_s: float,
        *,
        is_held: bool,
    ) -> None:
        """Charge the buffered bytes, and those of decoded packets that wait, to the input budget.

        If the budget is exceeded, the connection that waits longest for the rest of a large packet
        ends: if all waited, no packet would ever be complete. A paused connection is not read.
        """
        kept_bytes = self.decoder.compact() + packets_bytes
        self.unweighed_bytes = kept_bytes
        charged_bytes = max(0, kept_bytes - INPUT_FREE_BYTES)
        if not charged_bytes and not self.charged_bytes:
            return
        holders = node.input_holders
        claim_bytes = None if is_held else self.decoder.declared_bytes
        holders.hold(conversation, charged_bytes, now_s, claim_bytes=claim_bytes)
        grown, self.charged_bytes = charged_bytes > self.charged_bytes, charged_bytes
        while grown and holders.is_over:
            holder = holders.costliest(now_s)
            if holder is None:
                break
            holder.give_way(now_s)

    def forget(self, conversation: Conversation, node: NodeState, now_s: float) -> None:
        """Forget bytes that will never be decoded; the peer may be slow to close."""
        if self.charged_bytes:
            node.input_holders.hold(conversation, 0, now_s, claim_bytes=None)
            self.charged_bytes = 0
        self.decoder.clear()


def room_ahead_bytes(node: NodeState) -> int:
    """Return half of the input budget less its use; the other half is for packets under way."""
    budget = node.input_holders.budget
    return budget.limit_bytes // 2 - budget.used_bytes
