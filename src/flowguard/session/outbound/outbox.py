"""Outbox: bytes on their way to one client, until its socket takes them.

Answers may exceed the limit for a while, messages may not (`Outbound`). Bytes that a socket does
not accept are charged to the node until then. A client that accepts none is read up to a limit.
"""

from typing import Final, final

from flowguard.session.conversation import Conversation
from flowguard.session.node_state import NodeState

OUTBOX_WATERMARK_BYTES: Final = 64 * 1024
"""Messages stay in the queue, in which they can expire, while more than this is unsent."""
OUTBOX_SLACK_BYTES: Final = 64 * 1024
"""Answers may exceed the outbox limit by this much before a client that reads none is not read."""
JOINED_BYTES: Final = 1024
"""Minimum size of the pieces in which unread answers are joined."""
FRAME_BYTES: Final = 64
"""Memory of the object of a frame that a socket does not accept, and its place in the outbox."""
NO_FRAMES: Final[list[bytes]] = []
"""The outbox of all connections without data to send: shared, and never changed."""


@final
class Outbox:
    """Encoded packets of one connection, and their account."""

    __slots__ = (
        "_drained_bytes",
        "blocked",
        "blocked_bytes",
        "connection",
        "dirty",
        "frames",
        "is_closed",
        "limit_bytes",
        "node",
        "sent_bytes",
        "size_bytes",
    )
    __deletable__ = ("connection",)  # for mypyc

    def __init__(self, connection: Conversation, node: NodeState) -> None:
        self.connection = connection
        self.node = node
        self.frames = NO_FRAMES
        self.size_bytes = 0
        self.dirty = False
        self.is_closed = False
        self.blocked = False
        """True while the socket accepts no more."""
        self.blocked_bytes = 0
        """Number of bytes in the node's outbox budget for this connection."""
        self._drained_bytes = 0
        """Value of `blocked_bytes` before the last send, if the socket was blocked then."""
        self.limit_bytes = node.outbox_bytes_max + OUTBOX_SLACK_BYTES
        """Limit above which `may_owe_more` decides whether the client is read."""
        self.sent_bytes = 0
        """Number of bytes to its peer that the socket has accepted."""

    def write(self, frame: bytes) -> None:
        """Queue an encoded control packet; answers are as many as the packets they answer."""
        if self.blocked:
            self._write_blocked(frame)
        else:
            self.put(frame)
        self.size_bytes += len(frame)
        self.node.counters.messages_sent += 1
        if not self.dirty:
            self.dirty = True
            self.node.dirty.append(self.connection)

    def put(self, frame: bytes) -> None:
        """Append a frame."""
        if self.frames is NO_FRAMES:
            self.frames = [frame]
        else:
            self.frames.append(frame)

    def write_answers(self, frames: bytes, count: int) -> None:
        """Queue `count` encoded answers at once."""
        self.write(frames)
        self.node.counters.messages_sent += count - 1

    def _write_blocked(self, frame: bytes) -> None:
        """Queue an answer that its client does not read, charged to the node.

        Small ones are joined: as objects of their own they would take 20 times the memory.
        """
        if len(self.frames) > 1 and len(self.frames[-1]) < JOINED_BYTES:
            self.frames[-1] += frame
        else:
            self.put(frame)
        self.node.outbox_budget.hold(len(frame), self.blocked_bytes)
        self.blocked_bytes += len(frame)

    @property
    def owes_too_much(self) -> bool:
        """True if the client is not read because it does not read its answers."""
        return self.size_bytes > self.limit_bytes and not self.may_owe_more

    @property
    def may_owe_more(self) -> bool:
        """True if a client that does not read its answers may cause more of them.

        Half of the node's budget for such clients is for their messages.
        """
        node = self.node
        budget = node.outbox_budget
        owes_bytes = self.size_bytes - OUTBOX_SLACK_BYTES
        return owes_bytes <= node.outbox_bytes_max and 2 * budget.used_bytes <= budget.limit_bytes

    def take(self) -> bytes:
        """Return all data to send now; the caller must `put_back` what the socket rejects."""
        frames = self.frames
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self.frames = NO_FRAMES
        self.size_bytes = 0
        self.dirty = False
        self.node.counters.bytes_sent += len(data)
        self.sent_bytes += len(data)
        if self.blocked:
            self.node.outbox_budget.give_back(self.blocked_bytes, 0)
            self._drained_bytes, self.blocked_bytes = self.blocked_bytes, 0
            self.blocked = False
            self.limit_bytes = self.node.outbox_bytes_max + OUTBOX_SLACK_BYTES
        elif self._drained_bytes:
            self._drained_bytes = 0
        return data

    def put_back(self, rest: bytes) -> bool:
        """Put back the rest of the data, to be sent first when the socket accepts more.

        It counts against the node's budget until then. Return False if it exceeds the client's
        share, so that the connection must end; but not if the socket has accepted a part.
        """
        self.frames = [rest, *self.frames]
        self.size_bytes += len(rest)
        self.node.counters.bytes_sent -= len(rest)
        self.sent_bytes -= len(rest)
        self.blocked = True
        self.limit_bytes = 0
        self.dirty = True
        if self.is_closed:
            return True
        budget, size_bytes = self.node.outbox_budget, self.size_bytes
        if size_bytes <= self._drained_bytes:
            budget.hold(size_bytes, 0)
        elif not budget.take(size_bytes, 0):
            return False
        self.blocked_bytes = size_bytes
        return True

    @property
    def takes_more(self) -> bool:
        """True if messages may be added: few enough bytes are unsent."""
        return self.size_bytes < OUTBOX_WATERMARK_BYTES

    def put_burst(self, frames: bytes) -> None:
        """Queue PUBLISHes that the caller counts for all clients."""
        if self.frames is NO_FRAMES:
            self.frames = [frames]
        else:
            self.frames.append(frames)
        self.size_bytes += len(frames)
        if not self.dirty:
            self.dirty = True
            self.node.dirty.append(self.connection)

    def sent(self, frame_bytes: int, payload_bytes: int) -> None:
        """Count a PUBLISH in the outbox."""
        counters = self.node.counters
        counters.publish_sent += 1
        counters.publish_bytes_sent += payload_bytes
        self.size_bytes += frame_bytes
        if not self.dirty:
            self.dirty = True
            self.node.dirty.append(self.connection)

    def pump_again(self) -> None:
        """Call `pump` in a later slice; a pending send does that anyway.

        A second entry of the connection would double with each call.
        """
        if not self.dirty:
            self.node.dirty.append(self.connection)

    def close(self) -> None:
        """Free the memory of an ended connection; its last packets are still sent."""
        self.is_closed = True
        del self.connection  # A cycle would wait for the garbage collector, frames and all.
        budget = self.node.outbox_budget
        if self.blocked and 2 * budget.used_bytes > budget.limit_bytes:
            # It was not read, and the node has no capacity for its last packets.
            self.frames = NO_FRAMES
            self.size_bytes = 0
        budget.give_back(self.blocked_bytes, 0)
        self.blocked_bytes = 0
