"""The vocabulary of overload decisions: what was decided, and why."""

from enum import Enum, StrEnum


class Verdict(Enum):
    """What may happen to a unit of work now."""

    ADMIT = "admit"
    DELAY = "delay"
    REJECT = "reject"


class Reason(StrEnum):
    """Why work was dropped, delayed or refused; also the label of the counter."""

    GATE_BUFFER_FULL = "gate_buffer_full"
    GATE_BUFFER_BYTES = "gate_buffer_bytes"
    GATE_DEADLINE = "gate_deadline"
    DRAINING = "draining"
    QUEUE_MESSAGES = "queue_messages"
    QUEUE_BYTES = "queue_bytes"
    NODE_QUEUE_BYTES = "node_queue_bytes"
    OUTBOX_BYTES = "outbox_bytes"
    NODE_OUTBOX_BYTES = "node_outbox_bytes"
    PACKET_TOO_LARGE = "packet_too_large"
    MESSAGE_EXPIRED = "message_expired"
    RETAINED_FULL = "retained_full"
    OFFLINE_QOS_0 = "offline_qos_0"
