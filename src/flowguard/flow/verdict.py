"""The vocabulary of overload decisions: what was decided, and why."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Verdict(Enum):
    """The answer for a unit of work."""

    ADMIT = "admit"
    DELAY = "delay"
    REJECT = "reject"
    DROP = "drop"
    """Not worth an answer: whoever asked has asked again, or is gone."""


class Reason(StrEnum):
    """Why work was dropped, delayed or refused; also the label of the counter.

    A new one for CONNECTs begins with GATE_, or is listed in `ops.metrics`; one that `flowguard
    explain` may give for a client's messages is put in words in `ops.explain_words`;
    docs/explain/limits.md lists bounds.
    """

    GATE_BUFFER_FULL = "gate_buffer_full"
    """As many CONNECTs wait as may, in number."""
    GATE_BUFFER_BYTES = "gate_buffer_bytes"
    """The same in bytes."""
    GATE_DEADLINE = "gate_deadline"
    """It has waited as long as a client is assumed to wait."""
    GATE_WAIT = "gate_wait"
    """The buffer would take longer to drain than clients wait, as some have lately found out."""
    GATE_MEMORY = "gate_memory"
    """The memory of the node is full."""
    GATE_PRESSURE = "gate_pressure"
    """No place is free, and on the top rung of the ladder nobody waits for one."""
    GATE_LIMIT = "gate_limit"
    """A policy without a buffer has no place free."""
    GATE_RATE = "gate_rate"
    """A policy that limits rates has admitted as many as its rate allows."""
    GATE_SUPERSEDED = "gate_superseded"
    """The same client id has asked again."""
    DRAINING = "draining"
    """The node is about to end."""
    CONNECTIONS_MAX = "connections_max"
    """A CONNECT where as many clients are connected, or on their way in, as may."""
    SESSIONS_MAX = "sessions_max"
    """A CONNECT that asks for a session that is kept, where as many are as may."""
    ROLE_CONNECTIONS_MAX = "role_connections_max"
    """A CONNECT where as many clients of its role are connected as may."""
    QUEUE_MESSAGES = "queue_messages"
    """As many messages wait for a client as may."""
    QUEUE_BYTES = "queue_bytes"
    """The same in bytes."""
    NODE_QUEUE_BYTES = "node_queue_bytes"
    """A client's share of what all queues may have in memory."""
    NODE_DISK_QUEUE_BYTES = "node_disk_queue_bytes"
    """A client's share of what all queues may have on the disk."""
    OUTBOX_BYTES = "outbox_bytes"
    """A socket has not taken as much as may wait for it."""
    NODE_OUTBOX_BYTES = "node_outbox_bytes"
    """A client's share of what may wait for all sockets."""
    NODE_INPUT_BYTES = "node_input_bytes"
    """A client whose large packet found no room while it was received."""
    STATE_BYTES = "state_bytes"
    """A subscription, alias, will or QoS 2 identifier beyond what one client may keep."""
    NODE_STATE_BYTES = "node_state_bytes"
    """The same beyond a client's share of what all may keep."""
    PACKET_TOO_LARGE = "packet_too_large"
    """A message larger than its subscriber takes."""
    PAYLOAD_TOO_LARGE = "payload_too_large"
    """A message larger than publishers may send."""
    TOPIC_REFUSED = "topic_refused"
    """A message to a topic that nobody may publish to, or with too many levels."""
    NOT_AUTHORIZED = "not_authorized"
    """A message that its client may not publish."""
    MESSAGE_EXPIRED = "message_expired"
    """A message that was older than its publisher allows [MQTT-3.3.2-5]."""
    LOG_RETENTION = "log_retention"
    """Messages, of whatever topics, that left the durable log before a session had read them."""
    DISK_FULL = "disk_full"
    """A message, subscription or session that would have to be stored, and could not be."""
    RETAINED_FULL = "retained_full"
    """A retained message beyond the number, or the bytes, that a node keeps."""
    DESCRIPTORS = "descriptors"
    """A socket that had said nothing for a while, when there was no place for another one."""
    OFFLINE_QOS_0 = "offline_qos_0"
    """A message of QoS 0 for a client that is not connected."""


class Cut(StrEnum):
    """Why fewer CONNECTs may be in process than before; also the label of the counter."""

    SERVICE = "service"
    """Serving one takes longer than its objective."""
    PRESSURE = "pressure"
    """The node is under a pressure that windows alone have not relieved, or not yet."""


class Pause(StrEnum):
    """Why a client's packets wait, or its socket is not read."""

    SOCKET = "socket"
    """The client does not read its answers, so the broker does not read from it."""
    CONNACK = "connack"
    """The CONNECT is not answered yet."""
    QUEUE = "queue"
    """The next message waits for capacity in a subscriber's queue."""
    CLOSED = "closed"
    """The node admits no packets: its journal is full, or it drains."""
    WINDOW = "window"
    """The client's packets in process fill its window."""
    TURN = "turn"
    """The packets of all clients in process reach the node's limit; clients take turns."""
    CREDITS = "credits"
    """The client has used its credits of this round, under a policy that limits rates."""
    READ_AHEAD = "read_ahead"
    """The client is paused, and its read-ahead buffer is full."""
    INPUT_BYTES = "input_bytes"
    """The client is paused, and the node's memory for undecoded input is used up."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one CONNECT, and its reason."""

    verdict: Verdict
    reason: Reason | None = None
    """Why it is refused or dropped; None: it is admitted, or waits because no place is free."""
    retry_after_s: float = 0.0
    """When a refused client had better come back, with jitter; 0: the policy does not know."""


ADMITTED: Final = Admission(Verdict.ADMIT)
WAITS: Final = Admission(Verdict.DELAY)
