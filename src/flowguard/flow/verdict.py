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
    """No answer is needed: the client has sent another CONNECT, or has ended."""


class Reason(StrEnum):
    """Reason why work was dropped, delayed or rejected; also the label of the counter.

    A new one for CONNECTs begins with GATE_, or is listed in `ops.metrics`; one that `flowguard
    explain` may give for a client's messages is put in words in `ops.explain_words`;
    docs/explain/limits.md lists bounds.
    """

    GATE_BUFFER_FULL = "gate_buffer_full"
    """CONNECT: `connect_buffer_max` clients wait in the connect queue."""
    GATE_BUFFER_BYTES = "gate_buffer_bytes"
    """CONNECT: the connect queue holds `connect_buffer_bytes_max` bytes."""
    GATE_DEADLINE = "gate_deadline"
    """CONNECT: its wait has reached the connect timeout of clients."""
    GATE_WAIT = "gate_wait"
    """CONNECT: by the forecast it would wait longer than the connect timeout of clients."""
    GATE_MEMORY = "gate_memory"
    """CONNECT: the node has no memory for further waiting CONNECTs."""
    GATE_LIMIT = "gate_limit"
    """CONNECT: all slots are taken, under a policy without a connect queue."""
    GATE_RATE = "gate_rate"
    """CONNECT: the rate limit of the policy is reached."""
    GATE_SUPERSEDED = "gate_superseded"
    """CONNECT: the same client id has sent another CONNECT."""
    DRAINING = "draining"
    """CONNECT: the node is about to end."""
    CONNECTIONS_MAX = "connections_max"
    """CONNECT: the maximum number of clients is connected or connecting."""
    SESSIONS_MAX = "sessions_max"
    """CONNECT that asks for a durable session: the maximum number of sessions exists."""
    ROLE_CONNECTIONS_MAX = "role_connections_max"
    """CONNECT: the maximum number of clients of its role is connected."""
    WORKER_UNAVAILABLE = "worker_unavailable"
    """CONNECT: the worker that owns its session did not start again in time."""
    QUEUE_MESSAGES = "queue_messages"
    """Message: the client's queue is full, by number."""
    QUEUE_BYTES = "queue_bytes"
    """Message: the client's queue is full, by bytes."""
    NODE_QUEUE_BYTES = "node_queue_bytes"
    """Message: the client has its share of the memory for all queues."""
    NODE_DISK_QUEUE_BYTES = "node_disk_queue_bytes"
    """Message: the client has its share of the disk for all queues."""
    OUTBOX_BYTES = "outbox_bytes"
    """Message: the client's unsent bytes have reached their limit."""
    NODE_OUTBOX_BYTES = "node_outbox_bytes"
    """Message: the client has its share of the unsent bytes of all clients."""
    NODE_INPUT_BYTES = "node_input_bytes"
    """Connection: the memory for received input was used up by other clients' packets."""
    STATE_BYTES = "state_bytes"
    """Subscription, alias, will or QoS 2 identifier: the client's limit is reached."""
    NODE_STATE_BYTES = "node_state_bytes"
    """Subscription, alias, will or QoS 2 identifier: the client has its share of the node."""
    PACKET_TOO_LARGE = "packet_too_large"
    """Message: larger than its subscriber accepts."""
    PAYLOAD_TOO_LARGE = "payload_too_large"
    """Message: larger than publishers may send."""
    TOPIC_REFUSED = "topic_refused"
    """Message: clients may not publish to its topic, or the topic has too many levels."""
    NOT_AUTHORIZED = "not_authorized"
    """Message: the rules forbid its publisher the topic."""
    LINK_FULL = "link_full"
    """Message for another node of the cluster: the link is down or full."""
    MESSAGE_EXPIRED = "message_expired"
    """Message: older than its publisher's expiry interval [MQTT-3.3.2-5]."""
    LOG_RETENTION = "log_retention"
    """Messages that left the durable log before a session had read them."""
    STORE_FULL = "store_full"
    """Message, subscription or session that the store must keep: the store is full."""
    RETAINED_FULL = "retained_full"
    """Retained message: the node's limit for retained messages is reached."""
    DESCRIPTORS = "descriptors"
    """Connection without a CONNECT for a while, replaced because all descriptors are used."""
    OFFLINE_QOS_0 = "offline_qos_0"
    """Message of QoS 0 for a client that is not connected."""


class Cut(StrEnum):
    """Reason for fewer CONNECTs in process than before; also the label of the counter."""

    SERVICE = "service"
    """Serving a CONNECT takes longer than its objective."""
    PRESSURE = "pressure"
    """The node is under a pressure that windows alone have not relieved."""


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
    """Reason of a rejection or drop, or None if admitted or waiting for a slot."""
    retry_after_s: float = 0.0
    """Retry-after time of a rejected client, with jitter; 0 if the policy has none."""


ADMITTED: Final = Admission(Verdict.ADMIT)
WAITS: Final = Admission(Verdict.DELAY)
