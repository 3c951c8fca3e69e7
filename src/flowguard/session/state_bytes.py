"""State bytes: what is kept for one client besides messages, and how much it counts.

Client id, subscriptions, topic aliases of both directions, the will, inbound QoS 2 identifiers: the
client decides how many and how long they are, so their bytes are bounded per client
(`session.state_bytes_max`) and for the node (`node.state_bytes_max`). The constants were measured
with tracemalloc on CPython 3.11, rounded up; a text counts what it takes.
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
"""What is owed to a subscription, besides the topic after which that is."""
ALIAS_BYTES: Final = 200
INBOUND_ID_BYTES: Final = 120
"""An inbound QoS 2 identifier in use, in the session and in the store."""
PACKET_BYTES: Final = 200
"""Objects of a decoded packet, or of one of its filters; rounded up."""
ID_BYTES: Final = 128
"""A client id of up to 79 letters takes no more, and is counted with its connection or session: so
no crowd of subscriptions keeps ordinary clients out."""


@mypyc_attr(acyclic=True)
@final
class StateAccount:
    """The bytes that are kept for one client; the node's budget holds as many."""

    __slots__ = ("is_closed", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.is_closed = False

    def charge(self, more_bytes: int, node: NodeState) -> Reason | None:
        """Something is kept for the client, or (negative) no longer; a reason: it must not be.

        A closed account holds nothing, and ignores what is given back later.
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
        """Charge what a store remembers, which is kept even where limits are lower now."""
        node.state_budget.hold(size_bytes, self.size_bytes)
        self.size_bytes += size_bytes

    def close(self, node: NodeState) -> None:
        """Return all bytes: the session has ended."""
        node.state_budget.give_back(self.size_bytes, 0)
        self.size_bytes = 0
        self.is_closed = True


def name_bytes(name: str) -> int:
    """Memory of a client id or a user name beyond the ordinary, bytes."""
    return max(0, name.__sizeof__() - ID_BYTES)


def subscription_bytes(filter: str) -> int:
    size_bytes = SUBSCRIPTION_BYTES + filter.__sizeof__()
    if "+" in filter or "#" in filter:
        size_bytes += LEVEL_BYTES * (1 + filter.count("/"))
    if filter.startswith("$share/"):
        size_bytes += GROUP_BYTES
    return size_bytes


def owed_bytes(after: str | None) -> int:
    """Memory of the retained messages that a subscription is owed (`Filters.retained_after`)."""
    return 0 if after is None else OWED_BYTES + after.__sizeof__()


def alias_bytes(topic: str) -> int:
    return ALIAS_BYTES + topic.__sizeof__()


def will_bytes(will: WillRecord | None) -> int:
    return 0 if will is None else message_bytes(will.message)


def packet_bytes(packet: Packet) -> int:
    """Memory of a decoded packet, roughly, bytes."""
    match packet:
        case Publish():
            return message_bytes(packet)
        case Subscribe():
            return PACKET_BYTES + sum(PACKET_BYTES + len(filter) for filter, _ in packet.filters)
        case Unsubscribe():
            return PACKET_BYTES + sum(PACKET_BYTES + len(filter) for filter in packet.filters)
    return PACKET_BYTES
