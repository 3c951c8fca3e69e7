"""The explanation of a client, as far as a broker and the proxy both have it."""

from typing import NotRequired

from typing_extensions import TypedDict

from flowguard.ops.pressure import Decision
from flowguard.ops.status import Use
from flowguard.session.lives import Lives


class Cause(TypedDict):
    """One reason why messages from or to a client wait."""

    reason: str
    """Name of a `flow.Pause` or of a `session.states.Undelivered`. `draining` or `journal` stands
    for closed; `applications` means that it waits for messages to applications. The proxy adds
    `connect_queue` and `upstream`."""
    text: str
    """The reason for people, with its numbers."""


class LastEnd(TypedDict):
    """The latest end of a connection of the client."""

    at_s: float
    reason: str
    by: str
    """`client`, `broker`, `proxy` or `network`."""
    lasted_s: float
    why: str
    address: str
    """Address of the client at that time, or ""."""
    row_count: int
    """Number of ends in a row, each at most 5 minutes after the one before."""
    row_s: float
    """Time from the first of these ends to the latest one."""


def last_end(lives: Lives, client_id: str) -> LastEnd | None:
    """Return the latest end of a connection of the client, or None if it is not remembered."""
    end = lives.last.get(client_id)
    if end is None:
        return None
    return LastEnd(
        at_s=end.at_s,
        reason=end.reason,
        by=end.by,
        lasted_s=end.lasted_s,
        why=end.why,
        address=end.address,
        row_count=end.row_count,
        row_s=end.at_s - end.row_began_s,
    )


class AnyConnected(TypedDict):
    protocol: str
    since_s: float
    address: str
    silent_s: float
    window: Use
    outbox_bytes: Use
    unacknowledged: NotRequired[Use]
    receive_maximum: NotRequired[int | None]
    keep_alive_s: NotRequired[float | None]


class Explained(TypedDict):
    """The answer of `/explain/CLIENT_ID`, as `flowguard explain` reads it. `explain.Explanation`
    has the meaning of each field."""

    client_id: str
    user: str
    last_end: LastEnd | None
    now_s: float
    paused: list[Cause]
    window: float
    why: str
    decisions: list[Decision]
    connected: AnyConnected | None
    sentences: list[str]
    node: NotRequired[str]
    """The node of a cluster that has the session."""
    shard: NotRequired[int]
    inflight: NotRequired[Use]
    held: NotRequired[Use]
    """Packets that wait in the proxy."""
    queue_messages: NotRequired[Use]
    queue_bytes: NotRequired[Use]
    subscriptions: NotRequired[Use]
