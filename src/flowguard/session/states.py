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


class Sent(Enum):
    """Where the exchange of a message to a client stands, by packet identifier."""

    UNUSED = "the identifier is not in use"
    QOS_1 = "QoS 1: PUBACK is awaited"
    QOS_2 = "QoS 2: PUBREC is awaited"
    RELEASED = "QoS 2: PUBCOMP is awaited"


class Received(Enum):
    """Where the exchange of a QoS 2 message of a client stands, by packet identifier."""

    UNUSED = "the identifier is not in use"
    IN_PROCESS = "its PUBLISH is not durable yet"
    KNOWN = "PUBREC was sent, PUBREL is awaited"


class Event(Enum):
    """What a client sends, or a commit brings, about one identifier."""

    PUBLISH = "PUBLISH"
    PUBACK = "PUBACK"
    PUBREC = "PUBREC"
    PUBREC_REFUSES = "PUBREC with an error"
    PUBREL = "PUBREL"
    PUBCOMP = "PUBCOMP"
    COMMITTED = "the commit is done"


class Answer(Enum):
    """What the server does then."""

    NOTHING = "nothing"
    COUNTED = "nothing; the acknowledgement is counted"
    PUBREC = "PUBREC"
    PUBREL = "PUBREL, once PUBREC is durable"
    PUBREL_UNKNOWN = "PUBREL with 0x92"
    PUBCOMP = "PUBCOMP, once PUBREL is durable"
    PUBCOMP_UNKNOWN = "PUBCOMP with 0x92"
    ENDS = "the connection ends: protocol error"


class Step(NamedTuple):
    """What an event is answered with, and the state after it."""

    answer: Answer
    state: Sent | Received


SENT: Final[dict[tuple[Sent, Event], Step]] = {
    (Sent.UNUSED, Event.PUBACK): Step(Answer.COUNTED, Sent.UNUSED),
    (Sent.UNUSED, Event.PUBREC): Step(Answer.PUBREL_UNKNOWN, Sent.UNUSED),
    (Sent.UNUSED, Event.PUBREC_REFUSES): Step(Answer.COUNTED, Sent.UNUSED),
    (Sent.UNUSED, Event.PUBCOMP): Step(Answer.COUNTED, Sent.UNUSED),
    (Sent.QOS_1, Event.PUBACK): Step(Answer.NOTHING, Sent.UNUSED),
    (Sent.QOS_1, Event.PUBREC): Step(Answer.ENDS, Sent.QOS_1),
    (Sent.QOS_1, Event.PUBREC_REFUSES): Step(Answer.ENDS, Sent.QOS_1),
    (Sent.QOS_1, Event.PUBCOMP): Step(Answer.ENDS, Sent.QOS_1),
    (Sent.QOS_2, Event.PUBACK): Step(Answer.ENDS, Sent.QOS_2),
    (Sent.QOS_2, Event.PUBREC): Step(Answer.PUBREL, Sent.RELEASED),
    (Sent.QOS_2, Event.PUBREC_REFUSES): Step(Answer.NOTHING, Sent.UNUSED),
    (Sent.QOS_2, Event.PUBCOMP): Step(Answer.ENDS, Sent.QOS_2),
    (Sent.RELEASED, Event.PUBACK): Step(Answer.ENDS, Sent.RELEASED),
    (Sent.RELEASED, Event.PUBREC): Step(Answer.PUBREL, Sent.RELEASED),
    (Sent.RELEASED, Event.PUBREC_REFUSES): Step(Answer.PUBREL, Sent.RELEASED),
    (Sent.RELEASED, Event.PUBCOMP): Step(Answer.NOTHING, Sent.UNUSED),
}
"""A message to the client (`acknowledging`): state and event, answer and next state."""

RECEIVED: Final[dict[tuple[Received, Event], Step]] = {
    (Received.UNUSED, Event.PUBLISH): Step(Answer.NOTHING, Received.IN_PROCESS),
    (Received.UNUSED, Event.PUBREL): Step(Answer.PUBCOMP_UNKNOWN, Received.UNUSED),
    (Received.IN_PROCESS, Event.PUBLISH): Step(Answer.NOTHING, Received.IN_PROCESS),
    (Received.IN_PROCESS, Event.COMMITTED): Step(Answer.PUBREC, Received.KNOWN),
    (Received.IN_PROCESS, Event.PUBREL): Step(Answer.ENDS, Received.IN_PROCESS),
    (Received.KNOWN, Event.PUBLISH): Step(Answer.PUBREC, Received.KNOWN),
    (Received.KNOWN, Event.PUBREL): Step(Answer.PUBCOMP, Received.UNUSED),
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
    """It has not acknowledged as many bytes as it may have in flight, of the node's or its own."""
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


def sent_state(inflight: dict[int, Delivery | None], packet_id: int) -> Sent:
    """What `Receiver.inflight` says of an identifier."""
    if packet_id not in inflight:
        return Sent.UNUSED
    delivery = inflight[packet_id]
    if delivery is None:
        return Sent.RELEASED
    return Sent.QOS_1 if delivery.qos == 1 else Sent.QOS_2


def received_state(inbound_ids: dict[int, bool] | None, packet_id: int) -> Received:
    """What `Session.inbound_ids` says of an identifier."""
    durable = inbound_ids.get(packet_id) if inbound_ids else None
    if durable is None:
        return Received.UNUSED
    return Received.KNOWN if durable else Received.IN_PROCESS
