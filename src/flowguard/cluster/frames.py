"""Frames of a link between two nodes of a cluster: frames to bytes and back, without IO.

Each frame begins with a u32, the number of bytes that follow it, and a u8, its kind. Numbers are
big endian. A text has a u8 (name) or u16 before it, the number of its bytes in UTF-8.

    1 hello      u8 version, u64 incarnation, name
    2 open       u64 number
    3 batch      u64 first number; each message: u32 size, u8 flags (1 owed), u64 incarnation and
                 u64 position if owed, data
    4 durable    u64 number
    5 rejected   reason
    6 filters    u64 number, u8 flags (1 begins a snapshot, 2 ends one), u32 number of added
                 filters, all added filters, all removed filters
    7 confirmed  u64 number
    8 pressure   u64 incarnation, u64 sequence, f64 window, f64 pressure, u32 limit of CONNECTs,
                 u8 cause, u8 leaving, name
    9 unnumbered each message: u32 size, data
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias, final

from flowguard.cluster.pressure import PressureRecord
from flowguard.errors import MalformedPacket
from flowguard.flow.load.signals import Signal

VERSION: Final = 1
"""Version of all frames; both ends of a link must have the same."""
NAME_BYTES_MAX: Final = 255

OwedAddress: TypeAlias = tuple[int, int]
"""Incarnation of the node that owes a QoS 2 message, and the message's position in what this
incarnation owes to one peer. Addresses of one pair of nodes only grow, also over restarts."""
NOT_OWED: Final = (0, 0)
"""The address of a QoS 1 message. It is lower than every other address."""

_HELLO, _OPEN, _BATCH, _DURABLE, _REJECTED, _FILTERS, _CONFIRMED, _PRESSURE = range(1, 9)
_UNNUMBERED: Final = 9
_HEAD: Final = Struct(">IB")
_U8: Final = Struct(">B")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_HELLO_BODY: Final = Struct(">BQ")
_MESSAGE: Final = Struct(">IB")
_OWED: Final = Struct(">QQ")
_FILTERS_BODY: Final = Struct(">QBI")
_PRESSURE_BODY: Final = Struct(">QQddIBB")
_BEGINS: Final = 1
_ENDS: Final = 2
_CAUSES: Final = (None, *Signal)


@dataclass(frozen=True, slots=True)
class LinkHello:
    """The first frame of each side: the name and incarnation of the node that sends it."""

    name: str
    incarnation: int
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class StreamOpen:
    """The sender (re)starts its stream; `number` is that of the next message it sends."""

    number: int


@dataclass(frozen=True, slots=True)
class LinkMessage:
    """A message for the sessions of a peer, encoded by the caller."""

    data: bytes
    owed: OwedAddress = NOT_OWED


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages with consecutive numbers, of which `first` is the first."""

    first: int
    messages: tuple[LinkMessage, ...]


@dataclass(frozen=True, slots=True)
class Unnumbered:
    """QoS 0 messages; they are lost with the link."""

    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StreamDurable:
    """All messages up to `number` are committed where their sessions live."""

    number: int


@dataclass(frozen=True, slots=True)
class StreamRejected:
    """The receiver ends the stream; it ignores batches until the next `StreamOpen`."""

    reason: str


@dataclass(frozen=True, slots=True)
class FilterChange:
    """Filters that the sessions of the sender have or no longer have, up to change `number`.

    A snapshot may take several frames; it replaces all filters that the receiver knows.
    """

    number: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    begins: bool = False
    """True for the first frame of a snapshot."""
    ends: bool = False
    """True for the last frame of a snapshot."""


@dataclass(frozen=True, slots=True)
class FiltersConfirmed:
    """The sender forwards messages by all filter changes up to `number`."""

    number: int


Frame: TypeAlias = (
    LinkHello
    | StreamOpen
    | MessageBatch
    | Unnumbered
    | StreamDurable
    | StreamRejected
    | FilterChange
    | FiltersConfirmed
    | PressureRecord
)

_OF_A_NUMBER: Final[dict[int, Callable[[int], Frame]]] = {
    _OPEN: StreamOpen,
    _DURABLE: StreamDurable,
    _CONFIRMED: FiltersConfirmed,
}


def encode_frame(frame: Frame) -> bytes:
    kind, body = _body(frame)
    return _HEAD.pack(len(body) + 1, kind) + body


def _body(frame: Frame) -> tuple[int, bytes]:
    if isinstance(frame, MessageBatch):
        return _BATCH, _batch_body(frame)
    if isinstance(frame, Unnumbered):
        return _UNNUMBERED, b"".join([_U32.pack(len(each)) + each for each in frame.messages])
    if isinstance(frame, StreamDurable):
        return _DURABLE, _U64.pack(frame.number)
    if isinstance(frame, FilterChange):
        flags = (_BEGINS if frame.begins else 0) | (_ENDS if frame.ends else 0)
        head = _FILTERS_BODY.pack(frame.number, flags, len(frame.added))
        return _FILTERS, head + b"".join(map(_text, frame.added + frame.removed))
    if isinstance(frame, FiltersConfirmed):
        return _CONFIRMED, _U64.pack(frame.number)
    if isinstance(frame, PressureRecord):
        return _PRESSURE, _pressure_body(frame)
    if isinstance(frame, LinkHello):
        return _HELLO, _HELLO_BODY.pack(frame.version, frame.incarnation) + _name(frame.name)
    if isinstance(frame, StreamOpen):
        return _OPEN, _U64.pack(frame.number)
    return _REJECTED, _text(frame.reason)


def _batch_body(batch: MessageBatch) -> bytes:
    parts = [_U64.pack(batch.first)]
    for message in batch.messages:
        owed = message.owed
        parts.append(_MESSAGE.pack(len(message.data), owed != NOT_OWED))
        if owed != NOT_OWED:
            parts.append(_OWED.pack(owed[0], owed[1]))
        parts.append(message.data)
    return b"".join(parts)


def _pressure_body(record: PressureRecord) -> bytes:
    head = _PRESSURE_BODY.pack(
        record.incarnation,
        record.sequence,
        record.window,
        record.pressure,
        record.connects_limit,
        _CAUSES.index(record.cause),
        record.leaving,
    )
    return head + _name(record.node)


def _text(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def _name(name: str) -> bytes:
    data = name.encode()
    assert 1 <= len(data) <= NAME_BYTES_MAX
    return _U8.pack(len(data)) + data


@final
class FrameDecoder:
    """Cuts the bytes of one direction of a link into frames."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` is the maximum size of a frame."""
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete. Raises `MalformedPacket`.

        After an error the decoder must not be used.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        pos = 0
        while len(buffer) - pos >= _U32.size:
            (size,) = _U32.unpack_from(buffer, pos)
            if not 1 <= size <= self._bytes_max:
                raise MalformedPacket(
                    f"a frame of {size} bytes; 1 to {self._bytes_max} are allowed"
                )
            end = pos + _U32.size + size
            if end > len(buffer):
                break
            frames.append(_decode(bytes(buffer[pos + _U32.size : end])))
            pos = end
        del buffer[:pos]
        return frames


def _decode(data: bytes) -> Frame:
    reader = _Reader(data)
    try:
        frame = _frame(data[0], reader)
    except (StructError, UnicodeDecodeError, IndexError) as error:
        raise MalformedPacket(f"a frame of kind {data[0]} is damaged: {error}") from error
    if reader.pos != len(data):
        raise MalformedPacket(
            f"a frame of kind {data[0]} has {len(data) - reader.pos} bytes too many"
        )
    return frame


def _frame(kind: int, reader: "_Reader") -> Frame:
    if kind == _BATCH:
        return reader.batch()
    if kind in _OF_A_NUMBER:
        return _OF_A_NUMBER[kind](reader.u64())
    if kind == _FILTERS:
        return reader.filters()
    if kind == _PRESSURE:
        return reader.pressure()
    if kind == _HELLO:
        version, incarnation = reader.unpack(_HELLO_BODY)
        if version != VERSION:
            raise MalformedPacket(f"frames of version {version}; this node has version {VERSION}")
        return LinkHello(reader.name(), incarnation)
    if kind == _REJECTED:
        return StreamRejected(reader.text())
    if kind != _UNNUMBERED:
        raise MalformedPacket(f"a frame of unknown kind {kind}")
    return reader.unnumbered()


@final
class _Reader:
    """Reads the fields of one frame in their order."""

    __slots__ = ("data", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 1

    def unpack(self, layout: Struct) -> tuple:  # type: ignore[type-arg]
        found = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return found

    def u64(self) -> int:
        (number,) = self.unpack(_U64)
        return int(number)

    def octets(self, size: int) -> bytes:
        end = self.pos + size
        if end > len(self.data):
            raise IndexError("a field is cut short")
        found = self.data[self.pos : end]
        self.pos = end
        return found

    def text(self) -> str:
        (size,) = self.unpack(_U16)
        return self.octets(size).decode()

    def name(self) -> str:
        (size,) = self.unpack(_U8)
        if not size:
            raise MalformedPacket("a node without a name")
        return self.octets(size).decode()

    def batch(self) -> MessageBatch:
        first = self.u64()
        messages: list[LinkMessage] = []
        while self.pos < len(self.data):
            size, is_owed = self.unpack(_MESSAGE)
            incarnation, position = self.unpack(_OWED) if is_owed else NOT_OWED
            messages.append(LinkMessage(self.octets(size), (incarnation, position)))
        return MessageBatch(first, tuple(messages))

    def unnumbered(self) -> Unnumbered:
        messages: list[bytes] = []
        while self.pos < len(self.data):
            (size,) = self.unpack(_U32)
            messages.append(self.octets(size))
        return Unnumbered(tuple(messages))

    def filters(self) -> FilterChange:
        number, flags, added_count = self.unpack(_FILTERS_BODY)
        texts: list[str] = []
        while self.pos < len(self.data):
            texts.append(self.text())
        if added_count > len(texts):
            raise IndexError("a filter is missing")
        added, removed = tuple(texts[:added_count]), tuple(texts[added_count:])
        return FilterChange(number, added, removed, bool(flags & _BEGINS), bool(flags & _ENDS))

    def pressure(self) -> PressureRecord:
        incarnation, sequence, window, pressure, limit, cause, leaving = self.unpack(_PRESSURE_BODY)
        if not (0 < window <= 65_535 and 0 <= pressure <= 16):
            raise MalformedPacket(f"a window of {window} units or a pressure of {pressure}")
        return PressureRecord(
            self.name(),
            incarnation,
            sequence,
            window,
            pressure,
            _CAUSES[cause] if cause < len(_CAUSES) else None,  # Or one of a newer version.
            limit,
            bool(leaving),
        )
