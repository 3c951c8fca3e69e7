"""Records of data that travel to the store and back.

Instants (`*_at_s`) are seconds since the Unix epoch, so that they survive a restart. Positions
(`pos`) count the QoS 1 and 2 messages of one client from 1, in the order of acceptance; the packet
identifier follows from the position, so that a resumed session repeats it [MQTT-4.4.0-1].
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, final

from mypy_extensions import mypyc_attr

from flowguard.types import NO_PROPERTIES, Publish, SubscriptionOptions

NEVER_S: Final = float("inf")

DELIVERY_BYTES: Final = 200
"""Overhead of a queued message besides topic, payload and properties, bytes."""

QOS_1_IDS: Final = 32_767
QOS_2_IDS: Final = 32_768


def packet_id_of(pos: int, qos: int) -> int:
    """The packet identifier for a position: QoS 1 uses 1 to 32767, QoS 2 32768 to 65535."""
    return 1 + pos % QOS_1_IDS if qos == 1 else QOS_2_IDS + pos % QOS_2_IDS


class SinkKind(Enum):
    """A kind of owner of messages in the store; the value is the prefix of its keys in the store.

    A client id has no NUL, and the filter of a shared subscription begins with `$share/`.
    """

    SESSION = ""
    """A client's session; its name is the client id."""
    SHARED = "\0"
    """The queue of a shared subscription; its name is the filter with `$share/`."""
    SPREAD = "\0spread "
    """A shared subscription of several brokers: its messages enter and leave under this key."""
    MEMBERS = "\0member "
    """A shared subscription of several brokers: this broker has members of it."""
    OWED = "\0owed"
    """The node's own messages for applications, until the applications have them."""
    PEER = "\0peer "
    """QoS 2 messages that this node owes to another node of its cluster, until they are durable
    there; its name is that of the other node."""


_KINDS: Final = [(kind.value, kind) for kind in reversed(SinkKind) if kind.value]
"""The longest prefixes first."""


def key_of(kind: SinkKind, name: str = "") -> str:
    """Return the key of a sink in the store, which is the `client_id` of all its records."""
    prefix: str = kind.value
    return prefix + name


def sink_of(key: str) -> tuple[SinkKind, str]:
    """Return the kind and the name of the sink with this key in the store."""
    if not is_group(key):
        return SinkKind.SESSION, key
    for prefix, kind in _KINDS:
        if key.startswith(prefix):
            return kind, key.removeprefix(prefix)
    raise AssertionError(key)


OWED: Final = key_of(SinkKind.OWED)


def is_group(key: str) -> bool:
    """True if the owner of a key in the store is no client's session."""
    return key.startswith("\0")


def label_of(key: str) -> str:
    """Return a key as people read it: a client id, or the filter of a shared subscription."""
    kind, name = sink_of(key)
    return "owed" if kind is SinkKind.OWED else name


def owner_name(key: str) -> str:
    """Return a name, for people, of the owner of the queue with this key in the store."""
    if key == OWED:
        return "what is owed to applications"
    kind, name = sink_of(key)
    if kind is SinkKind.PEER:
        return f"what is owed to node {name!r}"
    return f"{'shared subscription' if is_group(key) else 'session'} {label_of(key)!r}"


class Durability(IntEnum):
    """The place where committed data are: in the process, the system, on disk, on other
    machines."""

    MEMORY = 0
    OS = 1
    FSYNC = 2
    REPLICATED = 3


def message_bytes(message: Publish) -> int:
    """Return the size of a message as its queue or store counts it, bytes."""
    topic = message.topic
    size_bytes = DELIVERY_BYTES + len(topic) + len(message.payload)
    if not topic.isascii():
        size_bytes += 3 * len(topic)  # One wide character makes all characters wide.
    if message.properties is not NO_PROPERTIES:
        size_bytes += message.properties.size_bytes
    return size_bytes


@mypyc_attr(acyclic=True)
@final
class Delivery:
    """One message as some subscribers get it; shared by all of them.

    `frame_v4` and `frame_v5` are (head, tail) of the encoded PUBLISH, filled at the first send.
    `expires_at_s` is NEVER_S without a message expiry interval. `place` belongs to the store: the
    place of the payload, if not with the entry; it returns to the store with `Settle`. `share` is
    the filter of the shared subscription whose member gets it, or "".
    """

    __slots__ = (
        "expires_at_s",
        "frame_v4",
        "frame_v5",
        "identifiers",
        "message",
        "place",
        "qos",
        "retain",
        "share",
        "_size_bytes",
    )

    def __init__(
        self,
        message: Publish,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        expires_at_s: float,
        place: bytes = b"",
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.expires_at_s = expires_at_s
        self.frame_v4: tuple[bytes, bytes] | None = None
        self.frame_v5: tuple[bytes, bytes] | None = None
        self.place = place
        self.share = ""
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size in a queue, bytes: topic, payload, properties, and the objects around them.

        Computed on first use, because most messages are never queued.
        """
        if not self._size_bytes:
            self._size_bytes = message_bytes(self.message)
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, size_bytes: int) -> None:
        """Set a known size of a message that is not in memory."""
        self._size_bytes = size_bytes


@dataclass(slots=True)
class WillRecord:
    """A pending will: published when the delay has passed or the session ends."""

    message: Publish
    delay_s: int


@dataclass(init=False, slots=True)
class SessionRecord:
    """The stored state of a session, without its queue, which `Store.fetch` returns in pages."""

    client_id: str
    expiry_interval_s: int
    ends_at_s: float | None
    """Time at which it ends without a reconnect, or None if its client was connected."""
    subscriptions: dict[str, SubscriptionOptions]
    inbound_ids: set[int]
    will: WillRecord | None
    next_pos: int
    sent_pos: int
    """Last position that may have been sent before."""
    unsettled_count: int
    """Number of entries in the queue, sent or not."""
    unsettled_bytes: int
    """Sum of their `Delivery.size_bytes`; a released one counts nothing."""
    log_place: bytes
    """Place in the durable log from which it reads, or b"" if it does not."""
    log_starts: dict[str, bytes]
    """Filters of subscriptions that started in the past, with their places in the log."""
    is_application: bool
    """True if its client is an application, or was at its last connection."""
    user: str
    """User who owns the session, or "" if it never had a client with a proved name."""
    retained_after: dict[str, str]
    """Filters of subscriptions with pending retained messages (`PutSubscription`)."""

    def __init__(
        self, client_id: str, expiry_interval_s: int, ends_at_s: float | None = None
    ) -> None:
        self.client_id = client_id
        self.expiry_interval_s = expiry_interval_s
        self.ends_at_s = ends_at_s
        self.subscriptions = {}
        self.inbound_ids = set()
        self.will = None
        self.next_pos = 1
        self.sent_pos = self.unsettled_count = self.unsettled_bytes = 0
        self.log_place = b""
        self.log_starts = {}
        self.is_application = False
        self.user = ""
        self.retained_after = {}

    def copied(self) -> "SessionRecord":
        """Return another record with the same values."""
        other = SessionRecord(self.client_id, self.expiry_interval_s, self.ends_at_s)
        other.subscriptions, other.inbound_ids = self.subscriptions, self.inbound_ids
        other.will = self.will
        other.next_pos, other.sent_pos = self.next_pos, self.sent_pos
        other.unsettled_count = self.unsettled_count
        other.unsettled_bytes = self.unsettled_bytes
        other.log_place, other.log_starts = self.log_place, self.log_starts
        other.is_application, other.user = self.is_application, self.user
        other.retained_after = self.retained_after
        return other


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class QueueEntry:
    """One unsettled position of a client; `delivery` is None between PUBREC and PUBREL."""

    pos: int
    packet_id: int
    delivery: Delivery | None

    def __init__(self, pos: int, packet_id: int, delivery: Delivery | None) -> None:
        self.pos = pos
        self.packet_id = packet_id
        self.delivery = delivery


@dataclass(init=False, slots=True)
class PutSession:
    client_id: str
    expiry_interval_s: int
    ends_at_s: float | None
    is_application: bool
    user: str

    def __init__(
        self,
        client_id: str,
        expiry_interval_s: int,
        ends_at_s: float | None,
        is_application: bool = False,
        user: str = "",
    ) -> None:
        self.client_id = client_id
        self.expiry_interval_s = expiry_interval_s
        self.ends_at_s = ends_at_s
        self.is_application = is_application
        self.user = user


@dataclass(slots=True)
class DropSession:
    """End a session and delete everything that belongs to it."""

    client_id: str


@dataclass(slots=True)
class PutWill:
    client_id: str
    will: WillRecord | None


@dataclass(slots=True)
class PutSubscription:
    client_id: str
    filter: str
    options: SubscriptionOptions
    retained_after: str | None = None
    """The matching retained messages of topics after this one, in topic order, are pending; "" if
    all are, or None if none is."""


@dataclass(slots=True)
class DropSubscription:
    client_id: str
    filter: str


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Append:
    """Add a message to the queue of a client at `pos`."""

    client_id: str
    pos: int
    delivery: Delivery

    def __init__(self, client_id: str, pos: int, delivery: Delivery) -> None:
        self.client_id = client_id
        self.pos = pos
        self.delivery = delivery


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Sent:
    """Positions up to `pos` were passed to the socket; nothing waits for this operation."""

    client_id: str
    pos: int

    def __init__(self, client_id: str, pos: int) -> None:
        self.client_id = client_id
        self.pos = pos


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Release:
    """PUBREC came: the client has the message, and PUBREL is pending."""

    client_id: str
    pos: int
    packet_id: int
    delivery: Delivery | None
    """The sent message, as in `Settle`, or None if it was released before."""

    def __init__(
        self, client_id: str, pos: int, packet_id: int, delivery: Delivery | None = None
    ) -> None:
        self.client_id = client_id
        self.pos = pos
        self.packet_id = packet_id
        self.delivery = delivery


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Forward:
    """The `Append` at `pos`, in the same batch, is the node's message (`OWED`) at `owed_pos`. It is
    for an application whose queue is in a separate store. That store remembers the highest
    `owed_pos` with the message, so that it does not take a message twice."""

    client_id: str
    pos: int
    owed_pos: int

    def __init__(self, client_id: str, pos: int, owed_pos: int) -> None:
        self.client_id = client_id
        self.pos = pos
        self.owed_pos = owed_pos


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Settle:
    """The position is done: acknowledged, expired or dropped. Nothing waits for this operation.

    `delivery` is the appended one, with its content and `place`, so that the store need not read it
    again. If it is None, because it was released or is not known any more, the store reads the
    entry.
    """

    client_id: str
    pos: int
    delivery: Delivery | None

    def __init__(self, client_id: str, pos: int, delivery: Delivery | None = None) -> None:
        self.client_id = client_id
        self.pos = pos
        self.delivery = delivery


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class PutInbound:
    """An inbound QoS 2 packet identifier is in use."""

    client_id: str
    packet_id: int

    def __init__(self, client_id: str, packet_id: int) -> None:
        self.client_id = client_id
        self.packet_id = packet_id


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class DropInbound:
    client_id: str
    packet_id: int

    def __init__(self, client_id: str, packet_id: int) -> None:
        self.client_id = client_id
        self.packet_id = packet_id


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class PutRetained:
    message: Publish
    expires_at_s: float

    def __init__(self, message: Publish, expires_at_s: float) -> None:
        self.message = message
        self.expires_at_s = expires_at_s


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class DropRetained:
    topic: str


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class AppendToLog:
    """Add a message to the durable log, once for all its readers."""

    publisher: str
    """Client id of the publisher, or "" for the node itself."""
    message: Publish
    expires_at_s: float

    def __init__(self, publisher: str, message: Publish, expires_at_s: float) -> None:
        self.publisher = publisher
        self.message = message
        self.expires_at_s = expires_at_s


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class PutLogPlace:
    """Set the place from which a session reads the durable log, or end its reading."""

    client_id: str
    place: bytes | None
    """A token of the store, or None for the place after all messages logged so far, or b"" if the
    session does not read, because messages enter its queue."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class PutLogStart:
    """Set the start of a new subscription of a session that reads the log. Messages logged between
    its start and this operation are read for it alone, later ones with the session's others."""

    client_id: str
    filter: str
    place: bytes | None
    """A token of the store, or None for a new subscription, or b"" if they are all read."""
    since_s: float = 0.0
    """Start of a new subscription, seconds since the Unix epoch; NEVER_S: this operation."""


StoreOp = (
    PutSession
    | DropSession
    | PutWill
    | PutSubscription
    | DropSubscription
    | Append
    | Forward
    | Sent
    | Release
    | Settle
    | PutInbound
    | DropInbound
    | PutRetained
    | DropRetained
    | AppendToLog
    | PutLogPlace
    | PutLogStart
)
"""All operations. A new one must be added to `stores.memory`, `stores.rocks` (`building`, `disk`,
`offline.salvage`), `stores.redis.changes`, `stores.kafka` (`plan`, `store`), `stores.base`,
`node.names` and `node.journal`, and to the contract's tests, which all stores must pass."""
