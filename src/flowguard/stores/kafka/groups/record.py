"""Records of a group's topic: the writer, its number of the record, and the message.

u8 version, 8 bytes writer, u64 number, the entry (`stores.entries`)
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from flowguard.errors import CorruptionError, FormatError
from flowguard.records import Delivery
from flowguard.stores.entries import decode_entry, encode_entry
from flowguard.stores.kafka.groups.window import RecordId

WRITER_BYTES: Final = 8
_HEAD: Final = Struct(f">B{WRITER_BYTES}sQ")
_VERSION: Final = 1


def encode_group_record(record: RecordId, delivery: Delivery) -> bytes:
    return _HEAD.pack(_VERSION, record.writer, record.number) + encode_entry(delivery)


def decode_group_record(value: bytes) -> tuple[RecordId, Delivery]:
    """Raises CorruptionError, and FormatError if a later version of flowguard wrote it."""
    try:
        version, writer, number = _HEAD.unpack_from(value)
    except StructError as error:
        raise CorruptionError("a record of a group's topic is cut short") from error
    if version != _VERSION:
        raise FormatError(
            f"a record of version {version}, which a later flowguard may know, not this one"
        )
    return RecordId(writer, number), decode_entry(value[_HEAD.size :])
