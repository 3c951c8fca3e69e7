"""The bytes that sessions hold, object by object, against the budgets of their node."""

from collections.abc import Collection, Iterable

from flowguard.flow import FairBudget
from flowguard.session.connection import ServerConnection
from flowguard.session.node_state import NodeState
from flowguard.session.outbound.backlog import Backlog
from flowguard.session.outbound.inflight import INFLIGHT_BYTES, Charge
from flowguard.session.session import Session
from flowguard.session.state_bytes import (
    INBOUND_ID_BYTES,
    alias_bytes,
    name_bytes,
    owed_bytes,
    subscription_bytes,
    will_bytes,
)


def check_budgets(
    node: NodeState,
    sessions: Collection[Session],
    queues: Iterable[Backlog],
    connections: Iterable[ServerConnection],
) -> None:
    """Check that every budget equals the sum of its objects.

    `queues` are backlogs besides those of sessions.

    `connections` are those without a session yet; a session has its own, even if its peer has left
    and its packets are still processed.
    """
    everyone = {*connections}
    everyone |= {s.outbound.connection for s in sessions if s.outbound is not None}
    charges = {
        charge for session in sessions for charge in (session.inflight.charges or {}).values()
    }
    assert set(node.inflight.charges.values()) <= charges
    for charge in charges:
        assert charge.holders == sum(
            list((session.inflight.charges or {}).values()).count(charge) for session in sessions
        )
    inflight_bytes = sum(map(_inflight_bytes, sessions)) + _of(charges, node.inflight.budget)
    assert node.inflight.budget.used_bytes == inflight_bytes
    assert node.inflight.budget.holders_count == sum(bool(s.inflight.messages) for s in sessions)
    backlogs = [*(session.queue for session in sessions), *queues]
    in_memory = [queue.charged_bytes for queue in backlogs]
    in_memory += [charge.size_bytes for charge in charges if charge.budget is node.queue_budget]
    _check_budget(node.queue_budget, in_memory)
    _check_budget(node.disk_queue_budget, [q.held_bytes for q in backlogs if q.spills])
    for session in sessions:
        assert session.account.size_bytes == _state_bytes(session)
    _check_budget(node.state_budget, [session.account.size_bytes for session in sessions])
    assert node.input_holders.budget.used_bytes == sum(
        each.input.charged_bytes for each in everyone
    )
    _check_budget(node.outbox_budget, [each.outbound.outbox.blocked_bytes for each in everyone])
    assert node.queue_budget.used_bytes <= node.queue_budget.limit_bytes
    assert node.outbox_budget.used_bytes <= node.outbox_budget.limit_bytes
    assert node.input_holders.budget.used_bytes <= node.input_holders.budget.limit_bytes


def used_bytes(node: NodeState) -> dict[str, int]:
    """Bytes that each budget holds, by its name."""
    return {
        "inflight": node.inflight.budget.used_bytes,
        "input": node.input_holders.budget.used_bytes,
        "outbox": node.outbox_budget.used_bytes,
        "disk_queue": node.disk_queue_budget.used_bytes,
        "queue": node.queue_budget.used_bytes,
        "state": node.state_budget.used_bytes,
    }


def _check_budget(budget: FairBudget, held_bytes: list[int]) -> None:
    assert budget.used_bytes == sum(held_bytes)
    assert budget.holders_count == sum(map(bool, held_bytes))


def _of(charges: set[Charge], budget: FairBudget) -> int:
    return sum(charge.size_bytes for charge in charges if charge.budget is budget)


def _inflight_bytes(session: Session) -> int:
    """Besides its charges."""
    size_bytes = INFLIGHT_BYTES * len(session.inflight.messages)
    assert set(session.inflight.charges or ()) <= set(session.inflight.messages)
    for packet_id, delivery in session.inflight.messages.items():
        if delivery is not None and packet_id not in (session.inflight.charges or ()):
            size_bytes += 2 * len(delivery.message.payload)
    return size_bytes


def _state_bytes(session: Session) -> int:
    topics: list[str] = []
    if session.outbound is not None:
        aliases = session.outbound._aliases
        topics += [] if aliases is None else list(aliases._by_topic)
        inbound = session.outbound.connection.inbound
        assert inbound is not None
        topics += inbound._aliases.topics.values() if inbound._aliases else ()
    return (
        name_bytes(session.client_id)
        + name_bytes(session.user)
        + will_bytes(session.will)
        + sum(map(subscription_bytes, session.subscriptions))
        + sum(map(owed_bytes, (session.subscriptions.retained_after or {}).values()))
        + sum(map(alias_bytes, topics))
        + INBOUND_ID_BYTES * len(session.inbound_ids or ())
    )
