"""The node number in a directory's uids, and the set of uids that it has received.

A directory is copied as a whole: by a backup, by hand, or when a split separates two sides. So one
vector of the highest clock values by node describes all uids that it has received. If an entry
is missing although its uid was received, it is settled; if its uid was not received, it is new
(docs/explain/durability.md, "Merging").

That requires that no two copies use the same number. So a copy draws a new number when it is first
opened. Backups have a file that marks a copy; a copy by hand has another inode of its folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from flowguard.errors import CorruptionError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.stores.durable_files import write_durably
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.database.rows import EngineBatch
from flowguard.stores.rocks.layouts.keys import HLC_KEY, NODE_KEY, SEEN_KEY

COPY: Final = "copy"
"""Name of the file that marks a copy that was not opened yet."""
_NODE_BYTES: Final = 4
_CLOCK_BYTES: Final = 8
_PAIR_BYTES: Final = _NODE_BYTES + _CLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """A directory's number and clock values; big endian, so that byte order is their order."""

    node: bytes
    hlc: bytes
    """The clock value of the last uid of this directory."""
    former: Mapping[bytes, bytes]
    """Highest clock values by node, of former numbers of this directory and of merged ones."""
    is_copy: bool = False
    """True if `node` is the original's number, under which this copy has written nothing."""

    @property
    def seen(self) -> dict[bytes, bytes]:
        """Highest clock values received, by node."""
        return {**self.former, self.node: self.hlc}


@final
class ReceivedUids:
    """The set of uids that a directory has received: `uid in received`."""

    __slots__ = ("_hlc_of",)

    def __init__(self, seen: Mapping[bytes, bytes]) -> None:
        self._hlc_of = dict(seen)

    def __contains__(self, uid: bytes) -> bool:
        return uid[:_CLOCK_BYTES] <= self._hlc_of.get(uid[_CLOCK_BYTES:], b"")


def read_identity(engine: RocksEngine, folder: Path) -> Identity | None:
    """Return the directory's identity, or None if it is new. Raises `CorruptionError`."""
    node = engine.meta.get(NODE_KEY)
    if node is None:
        return None
    pairs = engine.meta.get(SEEN_KEY) or b""
    if len(node) != _NODE_BYTES + 8 or len(pairs) % _PAIR_BYTES:
        raise CorruptionError(f"{folder} has no readable identity: its node record is damaged")
    former = {
        pairs[at : at + _NODE_BYTES]: pairs[at + _NODE_BYTES : at + _PAIR_BYTES]
        for at in range(0, len(pairs), _PAIR_BYTES)
    }
    inode = int.from_bytes(node[_NODE_BYTES:], "big")
    is_copy = (folder / COPY).exists() or inode != folder.stat().st_ino
    hlc = engine.meta.get(HLC_KEY) or bytes(_CLOCK_BYTES)
    return Identity(node[:_NODE_BYTES], hlc, former, is_copy)


def new_identity(
    former: Mapping[bytes, bytes], hlc: bytes, random_node: Callable[[], int]
) -> Identity:
    """Return an identity with a new number, which is neither 0 nor in `former`."""
    number = random_node()
    while not number or number.to_bytes(_NODE_BYTES, "big") in former:
        number = (number + 1) % 2**32
    return Identity(number.to_bytes(_NODE_BYTES, "big"), hlc, former)


def put_identity(engine: RocksEngine, batch: EngineBatch, identity: Identity, folder: Path) -> None:
    meta = engine.meta.handle
    inode = folder.stat().st_ino.to_bytes(8, "big")
    pairs = b"".join(node + hlc for node, hlc in sorted(identity.former.items()))
    batch.put(NODE_KEY, identity.node + inode, meta)
    batch.put(SEEN_KEY, pairs, meta)
    batch.put(HLC_KEY, identity.hlc, meta)


def open_identity(engine: RocksEngine, folder: Path, random_node: Callable[[], int]) -> Identity:
    """Return the identity of this directory. A new number is recorded and synced."""
    found = read_identity(engine, folder)
    if found is not None and not found.is_copy:
        return found
    if found is None:
        identity = new_identity({}, bytes(_CLOCK_BYTES), random_node)
    else:
        identity = new_identity(found.seen, found.hlc, random_node)
    batch = engine.batch()
    put_identity(engine, batch, identity, folder)
    engine.write(batch, sync=False)
    engine.sync()
    (folder / COPY).unlink(missing_ok=True)
    return identity


def mark_as_copy(folder: Path, source: Path) -> None:
    """Mark the folder durably as a copy, which gets a new number when it is opened."""
    write_durably(folder / COPY, "This copy has not been opened yet.\n")
    mark_as_part(folder, source)


def mark_as_part(folder: Path, *sources: Path) -> None:
    """Mark a folder durably as one that lacks the data of `sources` in Kafka."""
    if any((source / OWNER_FILE).exists() for source in sources):
        write_durably(folder / OWNER_FILE, "")
