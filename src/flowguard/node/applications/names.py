"""Names: the keys of sessions and groups whose operations are in a second journal.

They are those of applications with a store of their own. That store may be unavailable for a while,
and no operation of a device may wait for it. The second journal has all operations of such a key,
with two exceptions: identifiers in use by a publisher (`PutInbound`), and the end of a will, which
becomes durable with its message to devices.

A key changes sides seldom. One that enters waits until the first journal has done all its work. One
that leaves does so with the last batch that has an operation of it.
"""

from typing import Final, final
from zlib import crc32

from flowguard.records import (
    Append,
    AppendToLog,
    DropInbound,
    DropRetained,
    DropSession,
    PutInbound,
    PutRetained,
    PutSession,
    PutWill,
    SinkKind,
    StoreOp,
    sink_of,
)

_OTHERS: Final = (PutInbound, DropInbound, PutRetained, DropRetained, AppendToLog, PutWill)
"""Are never the second journal's by themselves; a CONNECT's will goes there with its session."""


def set_keys(ops: list[StoreOp], publisher: str) -> None:
    """Say which messages for groups of several brokers are of one publisher, and stay in order."""
    for op in ops:
        if isinstance(op, Append) and sink_of(op.client_id)[0] is SinkKind.SPREAD:
            op.pos = crc32(publisher.encode())


@final
class NamesApart:
    """One per node with such a store."""

    __slots__ = ("_leaving", "names")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._leaving: dict[str, int] = {}
        """Those of devices by now: the number of the last batch that has something of them."""

    def take(self, op: StoreOp) -> bool:
        """Whether an operation belongs to the second journal."""
        if isinstance(op, Append):
            return op.client_id in self.names
        if isinstance(op, _OTHERS):
            return False
        return op.client_id in self.names or (isinstance(op, PutSession) and op.is_application)

    def take_any(self, ops: list[StoreOp], name: str) -> bool:
        """Whether work belongs there; `name`: its key, if no operation has one."""
        return name in self.names or any([self.take(op) for op in ops])

    def follow(self, op: StoreOp, number: int) -> bool:
        """Take notice of an operation in the batch with this number.

        True: it has to wait for all that the first journal has.
        """
        if isinstance(op, (PutRetained, DropRetained, AppendToLog)):
            return False
        name, is_to_wait = op.client_id, False
        if isinstance(op, PutSession) and op.is_application:
            is_to_wait = name not in self.names
            self.names.add(name)
            self._leaving.pop(name, None)
        elif isinstance(op, PutWill):
            is_to_wait = True  # The first journal has the one before it.
        elif isinstance(op, DropSession):
            is_to_wait = True  # The first journal has its identifiers in use.
            self._leaving[name] = number
        elif isinstance(op, PutSession) or name in self._leaving:
            self._leaving[name] = number
        return is_to_wait

    def take_sent(self, sent: dict[str, int], number: int) -> dict[str, int]:
        """Take what was sent under these names out of `sent`."""
        taken = {name: sent.pop(name) for name in self.names.intersection(sent)}
        for name in taken:
            if name in self._leaving:
                self._leaving[name] = number
        return taken

    def tidy(self, done_number: int) -> None:
        """Forget names that have left: the batch with this number is done."""
        for name in [name for name, last in self._leaving.items() if last <= done_number]:
            del self._leaving[name]
            self.names.discard(name)
