"""The states of a session and their transitions, which docs/reference/session-states.md shows.

The code uses plain values (`Session.inflight`, `Session.inbound_ids`). `sent_state` and
`received_state` map such a value to a state below. The tests drive both exchanges by these
tables, and fail if the code differs.
"""

from enum import Enum
from typing import Final, NamedTuple

from flowguard.records import Delivery
from flowguard.session.states import CONNECTED, CONNECTING, ENDED, OPENED

CONNECTION: Final = {
    (OPENED, "an acceptable CONNECT"): CONNECTING,
    (OPENED, "any other input, or the connect timeout"): ENDED,
    (CONNECTING, "CONNACK with 0x00"): CONNECTED,
    (CONNECTING, "CONNACK with an error, or the client leaves"): ENDED,
    (
        CONNECTED,
        "DISCONNECT of either side, protocol error, keep-alive timeout, or the client leaves",
    ): ENDED,
}
"""The life of a connection: state and event, next state."""


class Sending(Enum):
    """State of a message to a client, by packet identifier."""

    UNUSED = "the identifier is not in use"
    QOS_1 = "QoS 1: PUBACK is awaited"
    QOS_2 = "QoS 2: PUBREC is awaited"
    RELEASED = "QoS 2: PUBCOMP is awaited"


class Receiving(Enum):
    """State of a QoS 2 message from a client, by packet identifier."""

    UNUSED = "the identifier is not in use"
    IN_PROCESS = "its PUBLISH is not durable yet"
    KNOWN = "PUBREC was sent, PUBREL is awaited"


class Event(Enum):
    """An event of one identifier: a packet of its client, or the end of a commit."""

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
"""A QoS 2 message of the client (`inbound`). Messages that need not be durable commit at once."""


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
