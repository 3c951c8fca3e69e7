"""The messages of one ordered pair of nodes: from the publisher's node until they are durable.

`OutgoingStream` is the end of the node that forwards, `IncomingStream` that of the node that owns
the sessions. The rules are those of go-back-N (RFC 3366, section 1.5) and of Kafka's idempotent
producer (KIP-98: producer id, epoch, sequence). The model check in tests/flowguard/cluster breaks
each of them in turn:

- Messages have consecutive numbers. The address of a message is (incarnation of the sending node,
  number). The receiver drops what it has by this address.
- The receiver answers "durable up to n" after its store has committed all messages up to n.
- A stream ends if its link is lost or the receiver rejects it. Then everything unanswered is sent
  again, oldest first, before anything newer. To reject one message and take the next would break
  a publisher's order.
- A QoS 2 message is owed: the sending node commits it, with its address, before it sends it. The
  address survives a restart of either node: the receiver commits the highest one with the message
  (its mark), and drops what is not above. So a restart of a node doubles no QoS 2 message.
- A QoS 0 message has no number. It is lost with the link, and dropped if the link is full.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, final

from flowguard.cluster.frames import (
    NOT_OWED,
    LinkMessage,
    MessageBatch,
    OwedAddress,
    StreamDurable,
    StreamOpen,
    Unnumbered,
)
from flowguard.errors import ProtocolViolation

BATCH_MESSAGES_MAX: Final = 256
BATCH_BYTES_MAX: Final = 65_536
"""A message that exceeds it has a batch of its own."""

Then: TypeAlias = Callable[[float], None]
"""A continuation that is called once, with the time in seconds."""


def nothing_waits(_: float) -> None:
    """The continuation of a message whose commit has no waiting sender."""


@final
class Forwarded:
    """A message that is sent or is to be sent; `then` is called when it is durable."""

    __slots__ = ("count", "number", "message", "then")

    def __init__(self, number: int, message: LinkMessage, then: Then | None, count: int) -> None:
        self.number = number
        self.message = message
        self.then = then
        self.count = count
        """Number of PUBLISHes in it, which the bound counts."""


class OutgoingStream:
    """Messages for one peer. It has two bounds, on messages and on bytes.

    Each bound may be exceeded by the messages of one check of `has_capacity`.
    """

    def __init__(self, incarnation: int, messages_max: int, bytes_max: int) -> None:
        """`incarnation` is that of this node."""
        self._incarnation = incarnation
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._next_number = 1
        self._next_position = 1
        self._sent_number = 0
        """The highest number that was sent, in any stream."""
        self._unanswered: deque[Forwarded] = deque()
        """Sent in the present stream."""
        self._unsent: deque[Forwarded] = deque()
        self.is_open = False
        self.messages_count = 0
        """Number of messages without an answer: sent, unsent, or not committed yet."""
        self.bytes_count = 0
        self._unnumbered: deque[tuple[bytes, int]] = deque()
        """QoS 0 messages, each with the number of PUBLISHes in it."""
        self._unnumbered_count = 0
        self.unnumbered_bytes = 0
        self.dropped_count = 0
        """Number of QoS 0 messages that were dropped, since the start."""

    def has_capacity(self) -> bool:
        return self.messages_count < self._messages_max and self.bytes_count < self._bytes_max

    def put(self, data: bytes, then: Then, count: int = 1) -> None:
        """Forward a QoS 1 message, or a burst of `count`."""
        self.reserve(len(data), count)
        self._append(LinkMessage(data), then, count)

    def owe(self, data: bytes) -> OwedAddress:
        """Return the address of a QoS 2 message, under which the caller commits it."""
        self.reserve(len(data))
        address = (self._incarnation, self._next_position)
        self._next_position += 1
        return address

    def put_owed(self, address: OwedAddress, data: bytes) -> None:
        """Forward a QoS 2 message whose address is committed; in the order of addresses."""
        self._append(LinkMessage(data, address), None)

    def recover(self, owed: Iterable[tuple[OwedAddress, bytes]]) -> None:
        """At the start: messages that earlier incarnations owe, in the order of addresses."""
        for address, data in owed:
            self.reserve(len(data))
            self.put_owed(address, data)

    def put_unnumbered(self, data: bytes, count: int = 1) -> bool:
        """Forward a QoS 0 message, or a burst of `count`.

        False if it is dropped: no link, or a bound is reached.
        """
        size_bytes = self.unnumbered_bytes
        is_full = self._unnumbered_count >= self._messages_max or size_bytes >= self._bytes_max
        if not self.is_open or is_full:
            self.dropped_count += count
            return False
        self._unnumbered.append((data, count))
        self._unnumbered_count += count
        self.unnumbered_bytes += len(data)
        return True

    def next_unnumbered(self) -> Unnumbered | None:
        """Return the next QoS 0 messages to send, or None."""
        waiting, size_bytes = self._unnumbered, 0
        messages: list[bytes] = []
        while waiting and len(messages) < BATCH_MESSAGES_MAX and size_bytes < BATCH_BYTES_MAX:
            data, count = waiting.popleft()
            size_bytes += len(data)
            self._unnumbered_count -= count
            messages.append(data)
        self.unnumbered_bytes -= size_bytes
        return Unnumbered(tuple(messages)) if messages else None

    def lose_unnumbered(self) -> None:
        """The link is lost, and the QoS 0 messages with it."""
        self.dropped_count += self._unnumbered_count
        self._unnumbered.clear()
        self._unnumbered_count = self.unnumbered_bytes = 0

    def open(self) -> StreamOpen:
        """Start the stream: the oldest message without an answer is the next one."""
        assert not self.is_open
        self.is_open = True
        return StreamOpen(self._unsent[0].number if self._unsent else self._next_number)

    def end(self) -> None:
        """The stream has ended, rejected or with its link: everything unanswered is unsent."""
        self.is_open = False
        self._unsent.extendleft(reversed(self._unanswered))
        self._unanswered.clear()

    def next_batch(self) -> MessageBatch | None:
        """Return the next messages to send, or None if there is nothing to send."""
        unsent = self._unsent
        if not self.is_open or not unsent:
            return None
        first = unsent[0].number
        messages: list[LinkMessage] = []
        size_bytes = 0
        while unsent and len(messages) < BATCH_MESSAGES_MAX:
            size_bytes += len(unsent[0].message.data)
            if messages and size_bytes > BATCH_BYTES_MAX:
                break
            forwarded = unsent.popleft()
            self._unanswered.append(forwarded)
            messages.append(forwarded.message)
            self._sent_number = max(self._sent_number, forwarded.number)
        return MessageBatch(first, tuple(messages))

    def answered(self, durable: StreamDurable) -> list[Forwarded]:
        """Return the messages that are durable now.

        Raises `ProtocolViolation` if one of them was not sent.
        """
        if durable.number > self._sent_number:
            raise ProtocolViolation(f"message {durable.number} is durable, but was not sent")
        found: list[Forwarded] = []
        for waiting in (self._unanswered, self._unsent):
            while waiting and waiting[0].number <= durable.number:
                forwarded = waiting.popleft()
                self.messages_count -= forwarded.count
                self.bytes_count -= len(forwarded.message.data)
                found.append(forwarded)
        return found

    def reserve(self, size_bytes: int, count: int = 1) -> None:
        """Count a message that follows with `put_owed`, after its commit."""
        self.messages_count += count
        self.bytes_count += size_bytes

    def _append(self, message: LinkMessage, then: Then | None, count: int = 1) -> None:
        self._unsent.append(Forwarded(self._next_number, message, then, count))
        self._next_number += 1


class IncomingStream:
    """Messages from one peer. It outlives links, and takes each message once."""

    def __init__(self, mark: OwedAddress = NOT_OWED) -> None:
        """`mark` is the committed one."""
        self.mark = mark
        """The highest address of a QoS 2 message that was taken; committed with the message."""
        self.incarnation = 0
        """The peer's; 0 before its first link."""
        self._taken = -1
        """Number of the last message that was taken; -1 if the incarnation has opened no stream."""
        self._durable = -1
        self.is_open = False

    def meet(self, incarnation: int) -> None:
        """A new link of an incarnation that is not fenced: numbers of earlier ones end here."""
        self.end()
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self._taken = self._durable = -1

    def open(self, opened: StreamOpen) -> StreamDurable:
        """A stream starts; return the first answer.

        Raises `ProtocolViolation` if messages are missing.
        """
        if self._taken < 0:
            self._taken = self._durable = opened.number - 1
        if not 1 <= opened.number <= self._taken + 1:
            raise ProtocolViolation(
                f"a stream opens at {opened.number}, {self._taken + 1} is the next"
            )
        self.is_open = True
        return StreamDurable(self._durable)

    def end(self) -> None:
        """The link is lost, or this node rejects the stream: batches are ignored until `open`."""
        self.is_open = False

    def take(self, batch: MessageBatch) -> list[LinkMessage]:
        """Return the messages of a batch that are new.

        Raises `ProtocolViolation` if messages before it are missing.
        """
        if not self.is_open:
            return []
        if batch.first > self._taken + 1:
            raise ProtocolViolation(
                f"a batch begins with {batch.first}, {self._taken + 1} is the next"
            )
        new: list[LinkMessage] = []
        for message in batch.messages[self._taken + 1 - batch.first :]:
            self._taken += 1
            if message.owed == NOT_OWED:
                new.append(message)
            elif message.owed > self.mark:
                self.mark = message.owed
                new.append(message)
        return new

    @property
    def taken(self) -> int:
        """Number to pass to `committed` when what was taken up to now is committed."""
        return self._taken

    def committed(self, incarnation: int, number: int) -> StreamDurable | None:
        """All messages up to `number` of an incarnation are committed.

        Return the answer, or None if a newer incarnation has begun. The new numbers mean other
        messages.
        """
        if incarnation != self.incarnation:
            return None
        self._durable = max(self._durable, number)
        return StreamDurable(self._durable)
