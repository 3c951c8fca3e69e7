"""Plain records of what travels to the store and back.

Instants (`*_at_s`) are seconds since the Unix epoch, so that they survive a restart. Positions
(`pos`) count the QoS 1 and 2 messages of one client from 1, in the order of acceptance; the packet
identifier follows from the position, so that a resumed session repeats it [MQTT-4.4.0-1].
"""

from dataclasses import dataclass, field
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
    """A kind of owner of messages in the store; the value is the beginning of its keys there.

    A client id has no NUL, and the filter of a shared subscription begins with `$share/`.
    """

    SESSION = ""
    """A client's session; its name is the client id."""
    SHARED = "\0"
    """The queue of a shared subscription; its name is the filter with `$share/`."""
    SPREAD = "\0spread "
    """A shared subscription of several brokers: under this key messages enter and leave it."""
    MEMBERS = "\0member "
    """A shared subscription of several brokers: this broker has members of it."""
    OWED = "\0owed"
    """The node's own messages for applications, until these have them."""
    PEER = "\0peer "
    """QoS 2 messages that this node owes to another node of its cluster, until they are durable
    there; its name is that of the other node."""


_KINDS: Final = [(kind.value, kind) for kind in reversed(SinkKind)]
"""The longest beginnings first."""


def key_of(kind: SinkKind, name: str = "") -> str:
    """Return the key, the `client_id` of all records, under which the store keeps a sink."""
    prefix: str = kind.value
    return prefix + name


def sink_of(key: str) -> tuple[SinkKind, str]:
    """Return the kind and the name of the sink that the store keeps under a key."""
    for prefix, kind in _KINDS:
        if key.startswith(prefix):
            return kind, key.removeprefix(prefix)
    raise AssertionError(key)


OWED: Final = key_of(SinkKind.OWED)


def is_group(key: str) -> bool:
    """Whether the store keeps something else than a client's session under a key."""
    return key.startswith("\0")


def label_of(key: str) -> str:
    """Return a key as people read it: a client id, or the filter of a shared subscription."""
    kind, name = sink_of(key)
    return "owed" if kind is SinkKind.OWED else name


def owner_name(key: str) -> str:
    """A name, for people, of the owner of the queue that the store keeps under `key`."""
    if key == OWED:
        return "what is owed to applications"
    kind, name = sink_of(key)
    if kind is SinkKind.PEER:
        return f"what is owed to node {name!r}"
    return f"{'shared subscription' if is_group(key) else 'session'} {label_of(key)!r}"


class Durability(IntEnum):
    """The meaning of "committed": in the process, the system, on the disk, on other machines."""

    MEMORY = 0
    OS = 1
    FSYNC = 2
    REPLICATED = 3


def message_bytes(message: Publish) -> int:
    """The size of a message as its queue or store counts it, bytes."""
    topic = message.topic
    size_bytes = DELIVERY_BYTES + len(topic) + len(message.payload)
    if not topic.isascii():
        size_bytes += 3 * len(topic)  # One wide character makes all of them wide.
    if message.properties is not NO_PROPERTIES:
        size_bytes += message.properties.size_bytes
    return size_bytes


@mypyc_attr(acyclic=True)
@final
class Delivery:
    """One message as some subscribers get it; shared by all of them.

    `frame_v4` and `frame_v5` are (head, tail) of the encoded PUBLISH, filled at the first send.
    `expires_at_s` is NEVER_S without a message expiry interval. `place` is the store's own: where
    it keeps the payload, if not with the entry; it travels back to the store with `Settle`. `share`
    is the filter of the shared subscription whose member gets it, or "".
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
        """Bytes that it counts in a queue: topic, payload, properties, and the objects around them.

        Computed once, when it is to wait: most messages never do.
        """
        if not self._size_bytes:
            self._size_bytes = message_bytes(self.message)
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, size_bytes: int) -> None:
        """It is known, where the message is not."""
        self._size_bytes = size_bytes


@dataclass(slots=True)
class WillRecord:
    """A will that is owed: published when the delay has passed or the session ends."""

    message: Publish
    delay_s: int


@dataclass(slots=True)
class SessionRecord:
    """A session as it survives: everything but its queue, which `Store.fetch` pages."""

    client_id: str
    expiry_interval_s: int
    ends_at_s: float | None = None
    """When it ends, if nobody connects; None: its client was connected."""
    subscriptions: dict[str, SubscriptionOptions] = field(default_factory=dict)
    inbound_ids: set[int] = field(default_factory=set)
    will: WillRecord | None = None
    next_pos: int = 1
    sent_pos: int = 0
    """Positions up to here may have been sent before."""
    unsettled_count: int = 0
    """Entries of the queue, sent or not."""
    unsettled_bytes: int = 0
    """`Delivery.size_bytes` of all of them; a released one counts nothing."""
    log_place: bytes = b""
    """Where it reads the durable log; empty: it does not."""
    log_starts: dict[str, bytes] = field(default_factory=dict)
    """Filters of its subscriptions that started in the past, and where they are."""
    is_application: bool = False
    """Its client is one that consumes everything, or was when it was here last."""
    user: str = ""
    """The user who owns the session; empty: no client with a proved name has had it."""
    retained_after: dict[str, str] = field(default_factory=dict)
    """Filters of its subscriptions that are owed retained messages (`PutSubscription`)."""


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class QueueEntry:
    """One unsettled position of a client; `delivery` is None after PUBREC, while PUBREL is owed."""

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
    """The session ends, with all that belongs to it."""

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
    """It is owed the retained messages of topics after this one, in their order; empty: of all that
    match. None: it is owed none."""


@dataclass(slots=True)
class DropSubscription:
    client_id: str
    filter: str


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Append:
    """A message enters the queue of a client at `pos`."""

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
    """Positions up to `pos` were handed to the socket; nothing waits for this operation."""

    client_id: str
    pos: int

    def __init__(self, client_id: str, pos: int) -> None:
        self.client_id = client_id
        self.pos = pos


@mypyc_attr(acyclic=True)
@dataclass(init=False, slots=True)
class Release:
    """PUBREC received: the message is the client's, PUBREL is owed."""

    client_id: str
    pos: int
    packet_id: int
    delivery: Delivery | None
    """The message that was sent, as `Settle` has it; None: it was released before."""

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
    """The `Append` at `pos`, in the same batch, is what the node owed (`OWED`) at `owed_pos`: an
    application's, in a store that keeps its queue apart. That remembers the highest one with the
    message, so that it is not given the same twice."""

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

    `delivery` is what was appended there (its content and `place`, so that the store need not read
    it again); None where it was released, or is not known any more: then the store reads the entry.
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
    """A message enters the durable log, once for all who read it."""

    publisher: str
    """Client id; empty: the node itself."""
    message: Publish
    expires_at_s: float

    def __init__(self, publisher: str, message: Publish, expires_at_s: float) -> None:
        self.publisher = publisher
        self.message = message
        self.expires_at_s = expires_at_s


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class PutLogPlace:
    """A session reads the durable log from here on; or does not any more."""

    client_id: str
    place: bytes | None
    """A token of the store's; None: after all that is logged before this operation; empty: messages
    enter the session's queue, it need not read."""


@mypyc_attr(acyclic=True)
@dataclass(slots=True)
class PutLogStart:
    """A subscription of a session that reads the log is new. What was logged since it starts and
    before this operation is read for it alone, everything later with the session's others."""

    client_id: str
    filter: str
    place: bytes | None
    """A token of the store's; None: the subscription is new; empty: nothing of that is left."""
    since_s: float = 0.0
    """Of a new one: when it starts, seconds since the Unix epoch; NEVER_S: with this operation."""


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
"""All operations. A new one is known by name in `stores.memory`, `stores.rocks` (`building`,
`disk`, `offline.salvage`), `stores.redis.changes`, `stores.kafka` (`plan`, `store`),
`stores.base`, `node.names` and `node.journal`, and in the contract's tests, which all stores
pass."""
