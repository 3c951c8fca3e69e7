"""Converts a batch of operations to the changes of each session: the parts of one commit.

An entry that is appended and settled in the same batch is never written.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final, final

from flowguard import records
from flowguard.errors import CorruptionError, StoreError
from flowguard.stores.redis.keys import KeyNames, bucket_of
from flowguard.stores.redis.queues import QueueLayout
from flowguard.stores.redis.values import (
    decode_session,
    decode_state,
    decode_subscription,
    encode_retained,
    encode_session,
    encode_subscription,
    is_applications,
    session_user,
)
from flowguard.stores.rows import decode_will, encode_will

# Fields of a session.
EXPIRY: Final = b"e"
WILL: Final = b"w"
SUBSCRIPTION: Final = b"s"
"""Prefix of a field; the filter follows."""
INBOUND: Final = b"i"
"""Prefix of a field; the packet identifier follows."""
WORD_BYTES: Final = 50
"""Memory per word of a call, without its content."""
_QUEUE_HEAD: Final = Struct(">IIQQQQQ")
_HEAD: Final = Struct(">IIQQQQQIIII")


@final
class OwnedSession:
    """The state of a session in its owner's memory, as of the last commit."""

    __slots__ = ("next_pos", "sent_pos", "version")

    def __init__(self, next_pos: int = 1, sent_pos: int = 0, version: int = 0) -> None:
        self.next_pos = next_pos
        self.sent_pos = sent_pos
        self.version = version
        """Number of the last commit that changed the session."""


@final
class SessionChange:
    """The difference that one batch makes to one session."""

    __slots__ = (
        "_added",
        "_dropped",
        "_put",
        "_released",
        "_settled",
        "is_there",
        "is_written_anew",
        "next_pos",
        "sent_pos",
    )

    def __init__(self, owned: OwnedSession | None) -> None:
        self.is_there = owned is not None
        self.is_written_anew = owned is None
        """True if the batch replaces all stored fields of the session."""
        self.next_pos = 1 if owned is None else owned.next_pos
        self.sent_pos = 0 if owned is None else owned.sent_pos
        self._clear()

    def _clear(self) -> None:
        self._put: dict[bytes, bytes] = {}
        self._dropped: dict[bytes, None] = {}
        self._added: dict[int, records.Delivery] = {}
        self._settled: dict[int, records.Delivery | None] = {}
        self._released: dict[int, tuple[int, records.Delivery | None]] = {}

    def apply(self, op: records.StoreOp) -> None:
        if isinstance(op, records.PutSession):
            self.is_there = True
            row = encode_session(
                op.expiry_interval_s,
                op.ends_at_s,
                is_application=op.is_application,
                user=op.user,
            )
            self._set(EXPIRY, row)
        elif not self.is_there:
            return
        elif isinstance(op, records.DropSession):
            self._clear()
            self.is_there = False
            self.is_written_anew = True
            self.next_pos, self.sent_pos = 1, 0
        elif isinstance(op, records.Append):
            if op.pos >= self.next_pos:
                self._added[op.pos] = op.delivery
                self.next_pos = op.pos + 1
        elif isinstance(op, records.Settle):
            self._settle(op.pos, op.delivery)
        elif isinstance(op, records.Sent):
            self.sent_pos = max(self.sent_pos, op.pos)
        elif isinstance(op, records.Release):
            self._release(op.pos, op.packet_id, op.delivery)
        else:
            self._apply_to_fields(op)

    def _release(self, pos: int, packet_id: int, delivery: records.Delivery | None) -> None:
        if pos >= self.next_pos:
            return
        self.sent_pos = max(self.sent_pos, pos)
        if pos not in self._settled and pos not in self._released:
            self._released[pos] = packet_id, delivery

    def _settle(self, pos: int, delivery: records.Delivery | None) -> None:
        if pos >= self.next_pos:
            return
        released = self._released.pop(pos, None)
        if self._added.pop(pos, None) is None:
            known = delivery if released is None else released[1] or delivery
            self._settled.setdefault(pos, known)

    def _apply_to_fields(self, op: records.StoreOp) -> None:
        match op:
            case records.PutSubscription(_, filter, options, after):
                self._set(SUBSCRIPTION + filter.encode(), encode_subscription(options, after))
            case records.DropSubscription(_, filter):
                self._unset(SUBSCRIPTION + filter.encode())
            case records.PutInbound(_, packet_id):
                self._set(INBOUND + b"%d" % packet_id, b"")
            case records.DropInbound(_, packet_id):
                self._unset(INBOUND + b"%d" % packet_id)
            case records.PutWill(_, None):
                self._unset(WILL)
            case records.PutWill(_, will) if will is not None:
                self._set(WILL, encode_will(will))
            case _:
                raise StoreError(f"Redis does not keep a {type(op).__name__}")

    def _set(self, field: bytes, value: bytes) -> None:
        self._put[field] = value
        self._dropped.pop(field, None)

    def _unset(self, field: bytes) -> None:
        self._put.pop(field, None)
        self._dropped[field] = None

    @property
    def is_of_queue(self) -> bool:
        """True if only the queue changes, by new entries and settled ones of known size."""
        if self.is_written_anew or self._put or self._dropped or self._released:
            return False
        for delivery in self._settled.values():  # noqa: SIM110  twice as fast as all()
            if delivery is None:
                return False
        return True

    def add_words(
        self, words: list[bytes | int], owned: OwnedSession | None, queues: QueueLayout
    ) -> None:
        """Add head and lists of the part, as described in `functions`."""
        head_at = len(words)
        words.append(b"")
        added_bytes = settled_bytes = settled_count = 0
        for field, value in self._put.items():
            words += (field, value)
        if not self.is_written_anew:
            words += self._dropped
        for pos, delivery in self._added.items():
            words += (pos, queues.label(delivery), queues.value(delivery))
            added_bytes += delivery.size_bytes
        unknown: list[int] = []
        for pos, settled in self._settled.items():
            if settled is None:
                unknown.append(pos)
            else:
                words.append(pos)
                settled_bytes += settled.size_bytes
                settled_count += 1
        version = 0 if owned is None else owned.version
        places = (version, self.next_pos, self.sent_pos)
        sizes = (len(self._added), settled_count, added_bytes, settled_bytes)
        if self.is_of_queue:
            words[head_at] = _QUEUE_HEAD.pack(*sizes, *places)
            return
        words += unknown
        for pos, (packet_id, _) in self._released.items():
            words += (pos, packet_id)
        drops = 0 if self.is_written_anew else len(self._dropped)
        counts = (len(self._put), drops, len(unknown), len(self._released))
        words[head_at] = _HEAD.pack(*sizes, *places, *counts)


@final
class CommitChanges:
    """All changes of a batch: sessions by client id, retained messages by bucket."""

    __slots__ = ("_owned", "retained", "sessions")

    def __init__(self, owned: dict[str, OwnedSession], ops: Iterable[records.StoreOp]) -> None:
        self._owned = owned
        self.sessions: dict[str, SessionChange] = {}
        self.retained: dict[int, dict[bytes, bytes | None]] = {}
        """Retained messages by bucket and topic; a value is None if the message is deleted."""
        for op in ops:
            self._apply(op)

    def _apply(self, op: records.StoreOp) -> None:
        if isinstance(op, records.PutRetained):
            topic = op.message.topic.encode()
            value = encode_retained(op.message, op.expires_at_s)
            self.retained.setdefault(bucket_of(topic), {})[topic] = value
        elif isinstance(op, records.DropRetained):
            topic = op.topic.encode()
            self.retained.setdefault(bucket_of(topic), {})[topic] = None
        elif isinstance(op, records.AppendToLog):
            raise StoreError("a log of messages is kept by RocksDB only, not by Redis")
        else:
            change = self.sessions.get(op.client_id)
            if change is None:
                owned = self._owned.get(op.client_id)
                if owned is None and not isinstance(op, records.PutSession):
                    return  # The session does not exist.
                change = self.sessions[op.client_id] = SessionChange(owned)
            change.apply(op)

    def calls(self, names: KeyNames, queues: QueueLayout, *, by_bucket: bool) -> list["CommitCall"]:
        """Return the commit as one call, or as one call per bucket, as buckets may have different
        primaries."""
        calls: dict[int, CommitCall] = {}

        def call_of(bucket: int) -> CommitCall:
            place = bucket if by_bucket else 0
            call = calls.get(place)
            if call is None:
                marks = names.mark(bucket) if by_bucket else (names.meta,)
                call = calls[place] = CommitCall(*marks)
            return call

        for client_id, change in self.sessions.items():
            name = client_id.encode()
            bucket = bucket_of(name)
            call = call_of(bucket)
            call.client_ids.append(client_id)
            start = names.bucket_start(bucket)
            call.states.append(start + b"o:" + name)
            if change.is_of_queue:
                call.others.append(start + b"q:" + name)
                call.words.append(b"q")
            elif change.is_written_anew:
                call.others += (*names.session(name), *names.bucket(bucket)[:2])
                call.words += (b"n" if change.is_there else b"d", name)
            else:
                call.others += names.session(name)
                call.words.append(b"p")
            change.add_words(call.words, self._owned.get(client_id), queues)
        for bucket, values in self.retained.items():
            call = call_of(bucket)
            owner, _, retained = names.bucket(bucket)
            call.others += (owner, retained)
            put = [(topic, value) for topic, value in values.items() if value is not None]
            call.words += (b"r", len(put), len(values) - len(put))
            for pair in put:
                call.words += pair
            call.words += [topic for topic, value in values.items() if value is None]
        return list(calls.values())


@final
class CommitCall:
    __slots__ = ("_never", "client_ids", "mark", "others", "states", "words")

    def __init__(self, mark: bytes, *never: bytes) -> None:
        self.mark = mark
        """The key that stores the number of the last commit."""
        self._never = never
        self.states: list[bytes] = []
        self.others: list[bytes] = []
        """Keys of the parts, in order."""
        self.words: list[bytes | int] = []
        """Words of the parts: ARGV after the number of sessions."""
        self.client_ids: list[str] = []
        """Sessions of the first parts, in order; parts with retained messages follow."""

    @property
    def keys(self) -> list[bytes]:
        return [self.mark, *self.states, *self.others, *self._never]

    @property
    def arguments(self) -> list[bytes | int]:
        """ARGV after the commit's number."""
        return [len(self.states), *self.words]

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the call, in bytes."""
        keys = self.keys
        size_bytes = WORD_BYTES * (len(keys) + len(self.words)) + sum(map(len, keys))
        return size_bytes + sum([len(word) for word in self.words if isinstance(word, bytes)])


def session_questions(
    names: KeyNames, queues: QueueLayout, client_id: str
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the commands whose answers `session_record` takes."""
    name = client_id.encode()
    session, queue, released = names.session(name)
    state = names.state(name)
    return (b"HGETALL", session), (b"GET", state), (queues.count, queue), (b"HLEN", released)


def session_record(client_id: str, answers: Sequence[Any]) -> records.SessionRecord:
    """Return the session that Redis has. Raises `CorruptionError`."""
    flat, state, waiting, released = answers
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        _, size_bytes, next_pos, sent_pos = decode_state(state or b"")
        row = fields.pop(EXPIRY)
        expiry_interval_s, ends_at_s = decode_session(row)
        record = records.SessionRecord(client_id, expiry_interval_s, ends_at_s)
        record.is_application = is_applications(row)
        record.user = session_user(row)
        record.next_pos, record.sent_pos = next_pos, sent_pos
        record.unsettled_count = waiting + released
        record.unsettled_bytes = size_bytes
        will = fields.pop(WILL, None)
        record.will = None if will is None else decode_will(will)
        for field, value in fields.items():
            if len(field) > 1 and field[:1] == SUBSCRIPTION:
                filter = field[1:].decode()
                record.subscriptions[filter], after = decode_subscription(value)
                if after is not None:
                    record.retained_after[filter] = after
            elif len(field) > 1 and field[:1] == INBOUND:
                record.inbound_ids.add(int(field[1:]))
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"session {client_id!r} is damaged: {error!r}") from error
    return record
