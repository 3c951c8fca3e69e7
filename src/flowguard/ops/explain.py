"""The answer of `/explain/CLIENT_ID`: why a client is paused, and what is dropped for it.

Connections store nothing for it. The reasons are derived from the state that causes them, in the
order in which admission checks them (`flow/window`). The node remembers its decisions.
"""

from itertools import islice
from typing import Final

from typing_extensions import TypedDict

from flowguard.flow import Pause
from flowguard.lines import count
from flowguard.node.applications.lane import ApplicationLane
from flowguard.node.node import Node
from flowguard.ops.common.explanation import Cause, LastEnd, last_end
from flowguard.ops.condition import NO_ROOM, not_ready
from flowguard.ops.pressure import Decision, decisions_of
from flowguard.ops.status import Use
from flowguard.session.connection import ServerConnection
from flowguard.session.outbound.dispatch import LARGE_INFLIGHT_MAX
from flowguard.session.outbound.inflight import SHARED_BYTES
from flowguard.session.outbound.outbox import OUTBOX_SLACK_BYTES
from flowguard.session.owner import is_unbounded
from flowguard.session.session import Session
from flowguard.session.states import Undelivered
from flowguard.types import MQTT_5, PROTOCOLS

WORDS: Final = {
    Undelivered.OFFLINE: "it is not connected",
    Undelivered.NOTHING_MATCHES: "every message that matches its subscriptions was sent",
    Undelivered.IDENTIFIER: "the packet identifier of its next message is still in use",
    Undelivered.DISK: "its queue is being read from the disk",
    Undelivered.LOG: "the messages that it missed are being read from the durable log",
    Undelivered.TURN: "its backlog waits for its turn, behind live messages and other backlogs",
}


FILTERS_SHOWN: Final = 20


class OnDisk(TypedDict):
    """A backlog that is read page by page, oldest first."""

    messages: int
    is_in_kafka: bool
    """True if it waits in Kafka, and not on the disk of the store."""
    read_pos: int
    """Position in the queue up to which it has been read."""
    last_pos: int
    """Last position in the queue."""
    per_s: float | None
    """Messages read from the disk since the client connected, per second, or null before the
    first."""


class FromLog(TypedDict):
    """Progress of a session in the durable log since the node started."""

    messages: int
    until_s: float
    """Time up to which the log is read, seconds since the Unix epoch."""
    lost: int
    """Messages of any topic that retention dropped before the session read them."""
    goes_on: bool
    """True if there are more missed messages."""


class InLog(TypedDict):
    """Messages in the durable log that a session has not read yet."""

    messages: int
    is_complete: bool
    """False if only a part of the messages was counted."""


class Rejected(TypedDict):
    """Messages that the client was not allowed to publish, since the node started."""

    messages: int
    topic: str
    """Topic of the latest one."""
    reason: str
    at_s: float
    """Unix time of the latest one."""


class Connected(TypedDict):
    protocol: str
    since_s: float
    """Unix time of its CONNACK."""
    address: str
    """Address of the client, also behind a proxy that reports it, or ""."""
    silent_s: float
    """Time since it sent bytes or was paused."""
    window: Use
    """Packets in process, in cost units."""
    outbox_bytes: Use
    keep_alive_s: float | None
    """Silence that ends the connection, or null without a limit."""
    unacknowledged: Use
    """Unacknowledged QoS 1 and 2 PUBLISHes. MQTT 5 clients above the limit are closed; older ones
    have no limit."""
    receive_maximum: int | None
    """Receive Maximum in its CONNACK, or null before MQTT 5."""
    socket_full: bool
    """True if its socket takes nothing more for now."""


class Explanation(TypedDict):
    client_id: str
    user: str
    """The proved user of the client, or ""; the proxy has the user name in its CONNECT."""
    last_end: LastEnd | None
    """The end of its former connection, or null if it is not remembered."""
    now_s: float
    paused: list[Cause]
    """Reasons why it has to wait, or an empty list."""
    window: float
    """The window of every client."""
    why: str
    """The current limit for every client: a full disk, or the latest decision."""
    decisions: list[Decision]
    """Changes of the node's window, oldest first."""
    roles: list[str]
    """Roles of the client, or an empty list without rules."""
    filters: list[str]
    """Filters of the client, the first `FILTERS_SHOWN` at most."""
    rejected: Rejected | None
    """Rejected messages of the client, or null if none is remembered."""
    client_class: str
    """"application" or "device"."""
    connected: Connected | None
    session_ends_s: float | None
    """Unix time at which a session without connection ends, or null if it does not."""
    undelivered: Cause
    """The reason why it gets no message now."""
    on_disk: OnDisk | None
    """The part of its queue that is only on disk, or null."""
    log: FromLog | None
    """Progress in the durable log, or null if it has read none since the node started."""
    in_log: InLog | None
    """Messages that wait in the durable log, or null if the session does not read it now."""
    damage: str
    """Error of the last read of its queue from the store, or ""."""
    dropped: list[str]
    """Reasons for which a new message to it would be dropped now."""
    queue_messages: Use
    queue_bytes: Use
    inflight: Use
    """QoS 1 and 2 messages sent to it and unacknowledged; its Receive Maximum may be less."""
    subscriptions: Use


def explain(
    node: Node, client_id: str, now_s: float, in_log: InLog | None = None
) -> Explanation | None:
    """Return the state of a client, or None if it has no session on this node.

    `in_log` is counted before, because the store is asked for it.
    """
    session = node.registry.sessions.get(client_id)
    if session is None:
        return None
    limits = node.settings.session
    connection = None if session.outbound is None else session.outbound.connection
    assert connection is None or isinstance(connection, ServerConnection)
    full = NO_ROOM if node.state.read_only else ""
    return Explanation(
        client_id=client_id,
        user=session.user,
        roles=_roles(node, session),
        filters=list(islice(session.subscriptions, FILTERS_SHOWN)),
        last_end=last_end(node.counters.lives, client_id),
        rejected=_rejected(node, client_id),
        client_class="application" if session.is_application else "device",
        now_s=now_s,
        connected=None if connection is None else _connected(node, connection, now_s),
        session_ends_s=session.ends_at_s,
        paused=[] if connection is None else pauses_of(node, connection, now_s),
        undelivered=undelivered_of(node, session),
        on_disk=_backlog(node, session, now_s),
        log=_from_log(node, session),
        in_log=in_log,
        damage=session.queue.disk.damage,
        dropped=[str(reason) for reason in session.dropped_now(node.state)],
        queue_messages=_bounded(session.queue.count, session.queue.messages_max, session),
        queue_bytes=_bounded(session.queue.size_bytes, session.queue.bytes_max, session),
        inflight=Use(used=len(session.inflight.messages), limit=limits.inflight_max),
        subscriptions=Use(used=len(session.subscriptions), limit=limits.subscriptions_max),
        window=node.guard.grant.window,
        why="; ".join(filter(None, (not_ready(node, now_s), full, node.guard.grant.why))),
        decisions=decisions_of(node),
    )


def _roles(node: Node, session: Session) -> list[str]:
    rules, rights = node.hooks.rules, session.rights
    if rules is None or rights is None:
        return []
    return [role.name for role in rules.roles_of(rights.principal)]


def _rejected(node: Node, client_id: str) -> Rejected | None:
    found = node.state.rejections.last.get(client_id)
    if found is None:
        return None
    return Rejected(
        messages=found.messages, topic=found.topic, reason=str(found.reason), at_s=found.at_s
    )


def _from_log(node: Node, session: Session) -> FromLog | None:
    reading = node.router.log.readings.get(session)
    if reading is None:
        return None
    return FromLog(
        messages=reading.read_count,
        until_s=reading.read_until_s,
        lost=reading.lost_count,
        goes_on=session.behind,
    )


def _connected(node: Node, connection: ServerConnection, now_s: float) -> Connected:
    inbound, outbound = connection.inbound, connection.outbound
    limits = node.settings.session
    is_5 = connection.version == MQTT_5
    peer = getattr(connection.transport, "peer", None)
    return Connected(
        protocol=PROTOCOLS.get(connection.version, "3.1"),
        since_s=connection.connected_s,
        address="" if peer is None else peer(),
        silent_s=max(0.0, now_s - connection.last_received_s),
        keep_alive_s=connection.keep_alive_s or None,
        window=(
            Use(used=0, limit=node.guard.window.limit)
            if inbound is None
            else Use(used=inbound.window.in_process, limit=inbound.window.limit)
        ),
        unacknowledged=Use(
            used=0 if inbound is None else inbound.unacknowledged,
            limit=limits.receive_maximum if is_5 else None,
        ),
        receive_maximum=connection.receive_maximum if inbound is not None and is_5 else None,
        outbox_bytes=Use(used=outbound.outbox.size_bytes, limit=limits.outbox_bytes_max),
        socket_full=outbound.outbox.blocked,
    )


def pauses_of(node: Node, connection: ServerConnection, now_s: float) -> list[Cause]:
    """Return the reasons why its packets wait, or would wait."""
    lane, inbound = node.router.lane, connection.inbound
    found = []
    for pause in connection.pauses():
        if inbound is not None and lane.is_before(inbound, pause):
            found.append(_behind_applications(lane, now_s))
        else:
            found.append(_pause(node, connection, pause, now_s))
    if found or inbound is None or not lane.delays(inbound):
        return found
    return [_behind_applications(lane, now_s)]


def _pause(node: Node, connection: ServerConnection, pause: Pause, now_s: float) -> Cause:
    text, window = str(pause), node.guard.window
    match pause:
        case Pause.CLOSED:
            return _closed(node)
        case Pause.QUEUE:
            text = _before_go_on(node, connection, now_s)
        case Pause.SOCKET:
            text = _unread_answers(node, connection.outbound.outbox.size_bytes)
        case Pause.WINDOW:
            text = _spent_window(connection)
        case Pause.TURN:
            text = (
                f"clients take turns: {count(window.in_process, 'packet')} with "
                f"{window.in_process_bytes:,} bytes in process for all clients, which is the "
                "limit of the broker now"
            )
        case Pause.CREDITS:
            text = f"it has used its {window.credits} packets of this round"
        case Pause.READ_AHEAD:
            text = "its unprocessed input has reached its limit"
        case Pause.INPUT_BYTES:
            text = "the input of all paused clients has reached its memory limit"
    return Cause(reason=str(pause), text=text)


def _closed(node: Node) -> Cause:
    if node.state.draining:
        return Cause(reason="draining", text="the broker drains: it processes no new packets")
    operations, limit = node.journal.depth, node.settings.flow.journal_ops_max
    text = (
        f"the journal is full: {operations:,} of {limit:,} operations, "
        f"{node.journal.size_bytes:,} of {node.settings.flow.journal_bytes_max:,} bytes "
        "wait for the store"
    )
    return Cause(reason="journal", text=text)


def _behind_applications(lane: ApplicationLane, now_s: float) -> Cause:
    """Return the pause of messages for applications, and of packets after them, by a full store."""
    since = f" for {lane.away_s(now_s):.1f} s now" if lane.is_away else ""
    text = (
        f"its messages for applications, and the packets after them, wait: the store of "
        f"applications accepts no more{since}; {lane.depth:,} of {lane.ops_max:,} "
        f"operations, {lane.size_bytes:,} of {lane.bytes_max:,} bytes wait for it"
    )
    return Cause(reason="applications", text=text)


def _spent_window(connection: ServerConnection) -> str:
    assert connection.inbound is not None
    window = connection.inbound.window
    text = f"its window is full: {window.in_process:,} of {window.limit:,} packets in process"
    return text if window.needs == 1 else f"{text}, and the next one counts as {window.needs:,}"


def _unread_answers(node: Node, outbox_bytes: int) -> str:
    """Return which limit of unread answers it has reached: its own, or that of all such clients."""
    limit_bytes = node.settings.session.outbox_bytes_max + OUTBOX_SLACK_BYTES
    if outbox_bytes > limit_bytes:
        return (
            f"it does not read its answers: {outbox_bytes:,} of {limit_bytes:,} bytes wait for it"
        )
    budget = node.state.outbox_budget
    return (
        f"it does not read its answers, {outbox_bytes:,} bytes; all such clients together have "
        f"{budget.used_bytes:,} bytes, and none of them is read above {budget.limit_bytes // 2:,}"
    )


def _before_go_on(node: Node, connection: ServerConnection, now_s: float) -> str:
    """Return what the next packet waits for: a queue, a link, or the owner of the store."""
    assert connection.session is not None
    if node.packets.in_doubt:
        return (
            "its next packet waits until the store answers: another broker may own the sessions "
            "by now"
        )
    wait = node.full_queues.wait_of(connection.session)
    if wait is None:
        return "its next message waits for capacity of the link to another worker or node"
    queue = wait.queue
    waits = f"for {now_s - wait.since_s:.1f} s now, {node.settings.session.block_s:g} s at most"
    if isinstance(queue, Session):
        limits = node.settings.session
        return (
            f"its next message waits for capacity in the queue of {queue.client_id}, {waits}: "
            f"{queue.queue.count:,} of {limits.queue_messages_max:,} messages, "
            f"{queue.queue.size_bytes:,} of {limits.queue_bytes_max:,} bytes are in it"
        )
    return (
        f"its next message waits for capacity in a queue of $share/{queue.name}/{queue.filter}, "
        f"{waits}"
    )


def undelivered_of(node: Node, session: Session) -> Cause:
    cause, outbound = session.undelivered(), session.outbound
    text = WORDS.get(cause, "")
    unacknowledged = len(session.inflight.messages)
    if cause is Undelivered.NOTHING_MATCHES and not session.subscriptions:
        text = "it has no subscription"
    elif cause is Undelivered.NOTHING_MATCHES and (troubles := _of_groups(node, session)):
        cause, text = Undelivered.GROUP, troubles
    elif cause is Undelivered.SOCKET and outbound is not None:
        unsent_bytes = outbound.outbox.size_bytes
        text = f"it does not read fast enough: {unsent_bytes:,} bytes wait for its socket"
    elif cause is Undelivered.RECEIVE_MAXIMUM and outbound is not None:
        text = (
            f"it has not acknowledged {unacknowledged:,} of the {outbound.inflight_max:,} messages "
            "that may be in flight"
        )
    elif cause is Undelivered.INFLIGHT_BYTES:
        text = _inflight_bytes(node, session)
    elif cause is Undelivered.DAMAGE:
        text = f"its queue cannot be read: {session.queue.disk.damage}"
    elif cause is Undelivered.WINDOW:
        text = (
            "a backlog is sent no faster than clients may publish: "
            f"{unacknowledged:,} of {node.guard.window.limit:,} messages in flight"
        )
    return Cause(reason=str(cause), text=text)


def _of_groups(node: Node, session: Session) -> str:
    """Return why its shared subscriptions that other brokers also have get nothing, or ""."""
    found, spread = [], node.router.queues.spread
    for queue in spread.of_member(session):
        troubles = [*spread.troubles.items(), *queue.troubles.items()]
        words = [f"{trouble}: {why}" for trouble, why in troubles]
        if queue.is_paused:
            words.append("the brokers are deciding which of them distributes the messages")
        if words:
            found.append(f"{queue.name}: {'; '.join(words)}")
    return ". ".join(found)


def _inflight_bytes(node: Node, session: Session) -> str:
    unacknowledged, head = len(session.inflight.messages), session.queue.peek()
    is_large = head is not None and len(head[1].message.payload) >= SHARED_BYTES
    if is_large and unacknowledged >= LARGE_INFLIGHT_MAX:
        return (
            f"it has not acknowledged {count(unacknowledged, 'message')}, and the next one is "
            f"large: messages of 4 KiB and more wait while {LARGE_INFLIGHT_MAX} are in flight"
        )
    budget, most = node.state.inflight.budget, node.settings.session.inflight_bytes_max
    text = (
        f"it has not acknowledged {count(unacknowledged, 'message')}, and may have no more bytes "
        f"in flight: all clients have {budget.used_bytes:,} of {budget.limit_bytes:,}"
    )
    return text if most is None else f"{text}, one of them may have {most:,}"


def _bounded(used: int, limit: int, session: Session) -> Use:
    """Return the use of its queue. An application whose messages wait in a store has no limit."""
    return Use(used=used, limit=None if is_unbounded(session) else limit)


def _backlog(node: Node, session: Session, now_s: float) -> OnDisk | None:
    queue = session.queue
    if not queue.disk.count:
        return None
    progress = node.state.progress.get(session)
    return OnDisk(
        messages=queue.disk.count,
        is_in_kafka=session.client_id in node.router.lane.names,
        read_pos=queue.disk.after_pos,
        last_pos=queue.disk.last_pos,
        per_s=None if progress is None else progress.per_s(now_s),
    )
