"""Keys of the database: big endian, so that byte order is their order.

A session has a dense number, `qno`, from its first PutSession to its DropSession. A number is never
used twice. Only the session's own row has the client id. All other keys begin with the number, so a
client id that is the prefix of another one causes no confusion.
"""

from typing import Final

# family default
FORMAT_KEY: Final = b"\x01format"
NODE_KEY: Final = b"\x01node"
HLC_KEY: Final = b"\x01hlc"
SEEN_KEY: Final = b"\x01seen"
QNO_KEY: Final = b"\x01qno"
CLEAN_KEY: Final = b"\x01clean"
CLOCK_KEY: Final = b"\x01clock"
SWEEP: Final = b"\x20"
SWEEP_END: Final = b"\x21"
SCRATCH_BY_UID: Final = b"\x30"
SCRATCH_BY_POS: Final = b"\x31"
SCRATCH_END: Final = b"\x32"
"""End of the scratch rows, which exist only during a merge."""
GENERATION: Final = b"\x40"
"""Prefix of the keys of the durable log's generations; the number follows, 4 bytes."""
GENERATION_END: Final = b"\x41"

# family s
SESSION: Final = b"\x01"
SESSION_END: Final = b"\x02"
OWN: Final = b"\x02"
SUBSCRIPTION: Final = 1
INBOUND: Final = 2
WILL: Final = 3
LOG_PLACE: Final = 4
LOG_START: Final = 5
OWN_KIND_AT: Final = 9

# family q
RECORD: Final = b"\x00"
ENTRY: Final = b"\x03"
ENTRY_POS_AT: Final = 9


def sweep_key(qno: int) -> bytes:
    return SWEEP + qno.to_bytes(8, "big")


def qno_of_sweep(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")


def session_key(client_id: str) -> bytes:
    return SESSION + client_id.encode()


def client_id_of(key: bytes) -> str:
    return key[1:].decode()


def own_prefix(qno: int) -> bytes:
    """Return the prefix of a session's keys in family s; `own_prefix(qno + 1)` is their end."""
    return OWN + qno.to_bytes(8, "big")


def subscription_key(qno: int, filter: str) -> bytes:
    return b"\x02%b\x01%b" % (qno.to_bytes(8, "big"), filter.encode())


def inbound_key(qno: int, packet_id: int) -> bytes:
    return b"\x02%b\x02%b" % (qno.to_bytes(8, "big"), packet_id.to_bytes(2, "big"))


def will_key(qno: int) -> bytes:
    return b"\x02%b\x03" % qno.to_bytes(8, "big")


def log_place_key(qno: int) -> bytes:
    return b"\x02%b\x04" % qno.to_bytes(8, "big")


def log_start_key(qno: int, filter: str) -> bytes:
    return b"\x02%b\x05%b" % (qno.to_bytes(8, "big"), filter.encode())


def queue_prefix(qno: int) -> bytes:
    """Return the prefix of a session's keys in family q; `queue_prefix(qno + 1)` is their end."""
    return qno.to_bytes(8, "big")


def record_key(qno: int) -> bytes:
    return qno.to_bytes(8, "big") + RECORD


def entry_prefix(qno: int) -> bytes:
    """Return the prefix of an entry's key in layout `window`; the position (8 bytes) follows."""
    return qno.to_bytes(8, "big") + ENTRY


def pos_of(key: bytes) -> int:
    """Return the position in an entry's key in layout `window`."""
    return int.from_bytes(key[ENTRY_POS_AT:], "big")
