"""The answer of `/explain/CLIENT_ID`: why a client is paused, and what is dropped for it.

Nothing is stored per connection for it: the reasons are read off the state they follow from, in
the order in which admission asks for them (`flow/window`), and the node remembers its decisions.
"""

from typing import Final, TypedDict

from flowguard.flow import Reason
from flowguard.node.node import Node
from flowguard.ops.status import Decision, Use, decisions_of
from flowguard.session.connection import ServerConnection
from flowguard.session.outbox import OUTBOX_SLACK_BYTES
from flowguard.session.session import Session
from flowguard.types import MQTT_5, MQTT_311

PROTOCOLS: Final = {MQTT_5: "5.0", MQTT_311: "3.1.1"}


class Pause(TypedDict):
    """One thing that keeps the broker from working on what a client sends."""

    reason: str
    """draining, journal, socket, queue, window, turn or credits."""
    text: str
    """The same for people, with the numbers."""


class Connected(TypedDict):
    """The connection of a client."""

    protocol: str
    silent_s: float
    """Time since bytes came from it, or it was held back."""
    keep_alive_s: float | None
    """The silence that ends the connection; None: none does."""
    window: Use
    """Its packets in process, in cost units."""
    unacknowledged: Use
    """Its QoS 1 and 2 PUBLISHes; beyond the limit a 5.0 client is closed, others have no limit."""
    receive_maximum: int | None
    """The limit that its CONNACK has told; None: before 5.0 it cannot be told."""
    outbox_bytes: Use
    socket_full: bool
    """Whether its socket takes nothing more for now."""


class Explanation(TypedDict):
    """One client at one instant."""

    client_id: str
    now_s: float
    connected: Connected | None
    session_ends_s: float | None
    """Unix time at which a session without connection ends; None: not foreseen."""
    paused: list[Pause]
    """Why it has to wait; empty: it does not."""
    damage: str
    """Why the store cannot read what waits for it; empty: it can, as far as it was asked."""
    dropped: list[str]
    """Reasons for which a message that arrived now would be dropped for it."""
    queue_messages: Use
    queue_bytes: Use
    inflight: Use
    """QoS 1 and 2 messages sent to it and unacknowledged; its Receive Maximum may be less."""
    subscriptions: Use
    window: float
    """The window that the node grants every client."""
    why: str
    decisions: list[Decision]
    """Changes of the node's window, oldest first."""


def explain(node: Node, client_id: str, now_s: float) -> Explanation | None:
    """The state of this client now; None: it has no session here."""
    session = node.registry.sessions.get(client_id)
    if session is None:
        return None
    limits = node.settings.session
    connection = None if session.outbound is None else session.outbound.connection
    assert connection is None or isinstance(connection, ServerConnection)
    return Explanation(
        client_id=client_id,
        now_s=now_s,
        connected=None if connection is None else _connected(node, connection, now_s),
        session_ends_s=session.ends_at_s,
        paused=[] if connection is None else _pauses(node, connection, now_s),
        damage=session.queue.damage,
        dropped=_drops(node, session),
        queue_messages=Use(used=session.queue.count, limit=limits.queue_messages_max),
        queue_bytes=Use(used=session.queue.size_bytes, limit=limits.queue_bytes_max),
        inflight=Use(used=len(session.inflight), limit=limits.inflight_max),
        subscriptions=Use(used=len(session.subscriptions), limit=limits.subscriptions_max),
        window=node.guard.grant.window,
        why=node.guard.grant.why,
        decisions=decisions_of(node),
    )


def _connected(node: Node, connection: ServerConnection, now_s: float) -> Connected:
    inbound, outbound = connection.inbound, connection.outbound
    limits = node.settings.session
    is_5 = connection.version == MQTT_5
    return Connected(
        protocol=PROTOCOLS.get(connection.version, "3.1"),
        silent_s=max(0.0, now_s - connection.last_received_s),
        keep_alive_s=connection.keep_alive_s or None,
        window=Use(
            used=0 if inbound is None else inbound.window.in_process, limit=node.window.limit
        ),
        unacknowledged=Use(
            used=0 if inbound is None else inbound.unacknowledged,
            limit=limits.receive_maximum if is_5 else None,
        ),
        receive_maximum=connection.receive_maximum if inbound is not None and is_5 else None,
        outbox_bytes=Use(used=outbound.outbox_bytes, limit=limits.outbox_bytes_max),
        socket_full=outbound.blocked,
    )


def _pauses(node: Node, connection: ServerConnection, now_s: float) -> list[Pause]:
    """Reasons why packets that it sent, or would send, have to wait."""
    pauses = []
    outbound = connection.outbound
    if outbound.outbox_bytes > outbound.outbox_limit and not outbound.may_owe_more:
        pauses.append(Pause(reason="socket", text=_unread_answers(node, outbound.outbox_bytes)))
    if connection.blocked:
        pauses += _before_full_queue(node, connection, now_s)
    elif not connection.drained:
        pauses += _without_room(node, connection)
    return pauses


def _unread_answers(node: Node, outbox_bytes: int) -> str:
    """Why it does not take its answers: its own bound is reached, or that of all such clients."""
    limit_bytes = node.settings.session.outbox_bytes_max + OUTBOX_SLACK_BYTES
    if outbox_bytes > limit_bytes:
        return (
            f"it does not take its answers: {outbox_bytes:,} of {limit_bytes:,} bytes wait for it"
        )
    budget = node.outbox_budget
    return (
        f"it does not take its answers, {outbox_bytes:,} bytes, and all clients that do not have "
        f"{budget.used_bytes:,} of the {budget.limit_bytes // 2:,} bytes up to which they are read"
    )


def _before_full_queue(node: Node, connection: ServerConnection, now_s: float) -> list[Pause]:
    """The pause of a PUBLISH that waits for room in a subscriber's queue, which is named."""
    assert connection.session is not None
    wait = node.full_queues.wait_of(connection.session)
    assert wait is not None
    queue = wait.queue
    waits = f"for {now_s - wait.since_s:.1f} s now, {node.settings.session.block_s:g} s at most"
    if isinstance(queue, Session):
        limits = node.settings.session
        text = (
            f"its next message waits for room in the queue of {queue.client_id}, {waits}: "
            f"{queue.queue.count:,} of {limits.queue_messages_max:,} messages, "
            f"{queue.queue.size_bytes:,} of {limits.queue_bytes_max:,} bytes are in it"
        )
    else:
        text = (
            f"its next message waits for room in any queue of $share/{queue.name}/{queue.filter}, "
            f"{waits}"
        )
    return [Pause(reason="queue", text=text)]


def _without_room(node: Node, connection: ServerConnection) -> list[Pause]:
    """The pauses of packets that wait undecoded, by what they wait for."""
    inbound, window = connection.inbound, node.window
    if inbound is None or inbound.window.room():
        return []
    if node.draining:
        return [Pause(reason="draining", text="the node drains: it admits nothing any more")]
    if window.closed:
        operations, limit = node.journal.depth, node.settings.flow.journal_ops_max
        text = (
            f"the journal is full: {operations:,} of {limit:,} operations, "
            f"{node.journal.size_bytes:,} of {node.settings.flow.journal_bytes_max:,} bytes "
            "wait for the store"
        )
        return [Pause(reason="journal", text=text)]
    in_process = inbound.window.in_process
    if inbound.window.is_full:
        text = f"its window is spent: {in_process:,} of {window.limit:,} packets are in process"
        if inbound.window.needs > 1:
            text += f", and the next one weighs {inbound.window.needs:,}"
        return [Pause(reason="window", text=text)]
    if window.shared:
        text = (
            f"clients take turns: {window.in_process:,} packets with {window.in_process_bytes:,} "
            "bytes are in process, of all clients; that is as much as the node may have now"
        )
        return [Pause(reason="turn", text=text)]
    text = f"its {window.credits} packets of this round are used up"
    return [Pause(reason="credits", text=text)]


def _drops(node: Node, session: Session) -> list[str]:
    """Limits that are reached: a message like those that wait for this client would be dropped."""
    limits = node.settings.session
    queue = session.queue
    outbound = session.outbound
    node_refusal = queue.node_refusal(queue.size_bytes // queue.count if queue.count else 1)
    reached = {
        Reason.OFFLINE_QOS_0: outbound is None,
        Reason.QUEUE_MESSAGES: queue.count >= limits.queue_messages_max,
        Reason.QUEUE_BYTES: queue.size_bytes >= limits.queue_bytes_max,
        Reason.NODE_QUEUE_BYTES: node_refusal is Reason.NODE_QUEUE_BYTES,
        Reason.NODE_DISK_QUEUE_BYTES: node_refusal is Reason.NODE_DISK_QUEUE_BYTES,
        Reason.OUTBOX_BYTES: outbound is not None
        and outbound.outbox_bytes >= limits.outbox_bytes_max,
        Reason.NODE_OUTBOX_BYTES: outbound is not None
        and outbound.blocked
        and not node.outbox_budget.fits(1, outbound.blocked_bytes),
    }
    return [str(reason) for reason, holds in reached.items() if holds]
