"""State bytes: the memory of one client besides messages.

This is client id, subscriptions, topic aliases of both directions, will and inbound QoS 2
identifiers. The client decides on their number and length, so their bytes are limited per client
(`session.state_bytes_max`) and for the node (`node.state_bytes_max`). The constants were measured
with tracemalloc on CPython 3.11, rounded up; a text counts with its memory.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from flowguard.codec.packets import Packet, Subscribe, Unsubscribe
from flowguard.flow import Reason
from flowguard.records import WillRecord, message_bytes
from flowguard.session.node_state import NodeState
from flowguard.types import Publish

SUBSCRIPTION_BYTES: Final = 300
LEVEL_BYTES: Final = 200
"""Each level of a filter with a wildcard is a node of the index."""
GROUP_BYTES: Final = 800
"""A shared subscription may be the first of its group."""
OWED_BYTES: Final = 150
"""Record of retained messages that a subscription is owed, without its topic."""
ALIAS_BYTES: Final = 200
INBOUND_ID_BYTES: Final = 120
"""An inbound QoS 2 identifier in use, in the session and in the store."""
PACKET_BYTES: Final = 200
"""Objects of a decoded packet, or of one of its filters; rounded up."""
ID_BYTES: Final = 128
"""A client id of up to 79 letters takes no more. It is counted with its connection or session, so
that many subscriptions cannot keep ordinary clients out."""


@mypyc_attr(acyclic=True)
@final
class StateAccount:
    """The state bytes of one client; the node's budget holds the same number."""

    __slots__ = ("is_closed", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_closed = False

    def charge(self, more_bytes: int, node: NodeState) -> Reason | None:
        """Charge more bytes, or return some if negative; return a reason if a limit is exceeded.

        A closed account holds nothing, and ignores further calls.
        """
        if self.is_closed:
            return None
        if more_bytes > 0:
            if self.size_bytes + more_bytes > node.state_bytes_max:
                return Reason.STATE_BYTES
            if not node.state_budget.take(more_bytes, self.size_bytes):
                return Reason.NODE_STATE_BYTES
        else:
            node.state_budget.give_back(-more_bytes, self.size_bytes + more_bytes)
        self.size_bytes += more_bytes
        return None

    def restore(self, size_bytes: int, node: NodeState) -> None:
        """Charge restored state, which is kept even if limits are lower now."""
        node.state_budget.hold(size_bytes, self.size_bytes)
        self.size_bytes += size_bytes

    def close(self, node: NodeState) -> None:
        """Return all bytes when the session has ended."""
        node.state_budget.give_back(self.size_bytes, 0)
        self.size_bytes = 0
        self.is_closed = True


def name_bytes(name: str) -> int:
    """Return the memory of a client id or a user name beyond `ID_BYTES`, bytes."""
    return max(0, name.__sizeof__() - ID_BYTES)


def subscription_bytes(filter: str) -> int:
    size_bytes = SUBSCRIPTION_BYTES + filter.__sizeof__()
    if "+" in filter or "#" in filter:
        size_bytes += LEVEL_BYTES * (1 + filter.count("/"))
    if filter.startswith("$share/"):
        size_bytes += GROUP_BYTES
    return size_bytes


def owed_bytes(after: str | None) -> int:
    """Return the memory of the record of owed retained messages (`Filters.retained_after`)."""
    return 0 if after is None else OWED_BYTES + after.__sizeof__()


def alias_bytes(topic: str) -> int:
    return ALIAS_BYTES + topic.__sizeof__()


def will_bytes(will: WillRecord | None) -> int:
    return 0 if will is None else message_bytes(will.message)


def packet_bytes(packet: Packet) -> int:
    """Return the approximate memory of a decoded packet, bytes."""
    match packet:
        case Publish():
            return message_bytes(packet)
        case Subscribe():
            return PACKET_BYTES + sum(PACKET_BYTES + len(filter) for filter, _ in packet.filters)
        case Unsubscribe():
            return PACKET_BYTES + sum(PACKET_BYTES + len(filter) for filter in packet.filters)
    return PACKET_BYTES
