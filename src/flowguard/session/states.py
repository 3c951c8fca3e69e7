"""States of a conversation, and what happens in them: tables, from which docs/session.md is drawn.

What is asked of every packet stands in plain values (`Session.inflight`, `Session.inbound_ids`);
`sent_state` and `received_state` say which of the states below such a value is. The tests drive
both exchanges by these tables, and fail where the code does something else.
"""

from enum import Enum, StrEnum
from typing import Final, NamedTuple

from flowguard.records import Delivery


class State(Enum):
    """Where a connection stands."""

    OPENED = "opened"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    ENDED = "ended"


# Looking an enum's member up is not free, and this is asked of every chunk of bytes.
OPENED: Final = State.OPENED
CONNECTING: Final = State.CONNECTING
CONNECTED: Final = State.CONNECTED
ENDED: Final = State.ENDED

CONNECTION: Final = {
    (OPENED, "a CONNECT that may be accepted"): CONNECTING,
    (OPENED, "anything else, or nothing in time"): ENDED,
    (CONNECTING, "CONNACK with 0x00"): CONNECTED,
    (CONNECTING, "CONNACK with an error, or the client leaves"): ENDED,
    (CONNECTED, "DISCONNECT of either side, a broken rule, silence, or the client leaves"): ENDED,
}
"""The life of a connection: state and event, next state."""


class Sending(Enum):
    """Where the exchange of a message to a client stands, by packet identifier."""

    UNUSED = "the identifier is not in use"
    QOS_1 = "QoS 1: PUBACK is awaited"
    QOS_2 = "QoS 2: PUBREC is awaited"
    RELEASED = "QoS 2: PUBCOMP is awaited"


class Receiving(Enum):
    """Where the exchange of a QoS 2 message of a client stands, by packet identifier."""

    UNUSED = "the identifier is not in use"
    IN_PROCESS = "its PUBLISH is not durable yet"
    KNOWN = "PUBREC was sent, PUBREL is awaited"


class Event(Enum):
    """An event of one identifier: something that its client sends, or that a commit brings."""

    PUBLISH = "PUBLISH"
    PUBACK = "PUBACK"
    PUBREC = "PUBREC"
    PUBREC_REFUSES = "PUBREC with an error"
    PUBREL = "PUBREL"
    PUBCOMP = "PUBCOMP"
    COMMITTED = "the commit is done"


class Reply(Enum):
    """The reactions of the server."""

    NOTHING = "nothing"
    COUNTED = "nothing; the acknowledgement is counted"
    PUBREC = "PUBREC"
    PUBREL = "PUBREL, once PUBREC is durable"
    PUBREL_UNKNOWN = "PUBREL with 0x92"
    PUBCOMP = "PUBCOMP, once PUBREL is durable"
    PUBCOMP_UNKNOWN = "PUBCOMP with 0x92"
    ENDS = "the connection ends: protocol error"


class Step(NamedTuple):
    """A step: the answer to an event, and the state after it."""

    answer: Reply
    state: Sending | Receiving


SENT: Final[dict[tuple[Sending, Event], Step]] = {
    (Sending.UNUSED, Event.PUBACK): Step(Reply.COUNTED, Sending.UNUSED),
    (Sending.UNUSED, Event.PUBREC): Step(Reply.PUBREL_UNKNOWN, Sending.UNUSED),
    (Sending.UNUSED, Event.PUBREC_REFUSES): Step(Reply.COUNTED, Sending.UNUSED),
    (Sending.UNUSED, Event.PUBCOMP): Step(Reply.COUNTED, Sending.UNUSED),
    (Sending.QOS_1, Event.PUBACK): Step(Reply.NOTHING, Sending.UNUSED),
    (Sending.QOS_1, Event.PUBREC): Step(Reply.ENDS, Sending.QOS_1),
    (Sending.QOS_1, Event.PUBREC_REFUSES): Step(Reply.ENDS, Sending.QOS_1),
    (Sending.QOS_1, Event.PUBCOMP): Step(Reply.ENDS, Sending.QOS_1),
    (Sending.QOS_2, Event.PUBACK): Step(Reply.ENDS, Sending.QOS_2),
    (Sending.QOS_2, Event.PUBREC): Step(Reply.PUBREL, Sending.RELEASED),
    (Sending.QOS_2, Event.PUBREC_REFUSES): Step(Reply.NOTHING, Sending.UNUSED),
    (Sending.QOS_2, Event.PUBCOMP): Step(Reply.ENDS, Sending.QOS_2),
    (Sending.RELEASED, Event.PUBACK): Step(Reply.ENDS, Sending.RELEASED),
    (Sending.RELEASED, Event.PUBREC): Step(Reply.PUBREL, Sending.RELEASED),
    (Sending.RELEASED, Event.PUBREC_REFUSES): Step(Reply.PUBREL, Sending.RELEASED),
    (Sending.RELEASED, Event.PUBCOMP): Step(Reply.NOTHING, Sending.UNUSED),
}
"""A message to the client (`acknowledging`): state and event, answer and next state."""

RECEIVED: Final[dict[tuple[Receiving, Event], Step]] = {
    (Receiving.UNUSED, Event.PUBLISH): Step(Reply.NOTHING, Receiving.IN_PROCESS),
    (Receiving.UNUSED, Event.PUBREL): Step(Reply.PUBCOMP_UNKNOWN, Receiving.UNUSED),
    (Receiving.IN_PROCESS, Event.PUBLISH): Step(Reply.NOTHING, Receiving.IN_PROCESS),
    (Receiving.IN_PROCESS, Event.COMMITTED): Step(Reply.PUBREC, Receiving.KNOWN),
    (Receiving.IN_PROCESS, Event.PUBREL): Step(Reply.ENDS, Receiving.IN_PROCESS),
    (Receiving.KNOWN, Event.PUBLISH): Step(Reply.PUBREC, Receiving.KNOWN),
    (Receiving.KNOWN, Event.PUBREL): Step(Reply.PUBCOMP, Receiving.UNUSED),
}
"""A QoS 2 message of the client (`inbound`). What need not be durable is committed at once."""


class Undelivered(StrEnum):
    """Why a client gets no message now."""

    OFFLINE = "offline"
    """It is not connected."""
    NOTHING_MATCHES = "nothing_matches"
    """Nothing waits for it: it has no subscription, or all that matched one was sent."""
    SOCKET = "socket"
    """Its socket takes nothing, or too little."""
    RECEIVE_MAXIMUM = "receive_maximum"
    """It has not acknowledged as many messages as may be in flight to it."""
    INFLIGHT_BYTES = "inflight_bytes"
    """It has not acknowledged as many bytes as it may have in flight, of the node's or its own, or
    16 messages, and the next one has 4 KiB or more."""
    IDENTIFIER = "identifier"
    """The packet identifier of the next message is still in use by an older one."""
    DAMAGE = "damage"
    """The store cannot read what waits for it."""
    DISK = "disk"
    """The next message is on disk, and the store has been asked for it."""
    WINDOW = "window"
    """A backlog goes no faster than clients may publish: the node's window is that full."""
    TURN = "turn"
    """Its backlog waits for its turn, behind live messages and other backlogs."""
    LOG = "log"
    """What it has missed is being read from the durable log."""
    GROUP = "group"
    """Something is wrong with a shared subscription that other brokers have, too."""


def sent_state(inflight: dict[int, Delivery | None], packet_id: int) -> Sending:
    """The state that `Receiver.inflight` gives an identifier."""
    if packet_id not in inflight:
        return Sending.UNUSED
    delivery = inflight[packet_id]
    if delivery is None:
        return Sending.RELEASED
    return Sending.QOS_1 if delivery.qos == 1 else Sending.QOS_2


def received_state(inbound_ids: dict[int, bool] | None, packet_id: int) -> Receiving:
    """The state that `Session.inbound_ids` gives an identifier."""
    durable = inbound_ids.get(packet_id) if inbound_ids else None
    if durable is None:
        return Receiving.UNUSED
    return Receiving.KNOWN if durable else Receiving.IN_PROCESS
