"""Changes that operators ask for.

    POST /clients/kick      {"client_id": "..."}: DISCONNECT with 0x98; the session stays
    POST /clients/forget    {"client_id": "..."}: end the session and its queue, too
    POST /retained/delete   {"filter": "..."}: delete the retained messages that match

Each is a log event `audit`, and is answered after the commit.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, final

import trio
from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.lists.retained import filter_of, matching
from flowguard.ops.web.callers import audit
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)
from flowguard.ops.web.turns import AnswerTurns
from flowguard.records import NEVER_S
from flowguard.routing import RetainedMessage
from flowguard.types import Publish, ReasonCode

KICK: Final = "/clients/kick"
FORGET: Final = "/clients/forget"
CLIENT_CHANGES: Final = (KICK, FORGET)
DELETE_RETAINED: Final = "/retained/delete"
DELETIONS_MAX: Final = 1_000
"""Retained messages that one request deletes."""
COMMIT_S: Final = 5.0
"""Maximum wait for the commit, seconds."""
NOT_COMMITTED: Final = {"error": "done, but the store has not committed it yet"}


class _Client(TypedDict):
    client_id: Annotated[str, Field(min_length=1)]


class _Filter(TypedDict):
    filter: Annotated[str, AfterValidator(filter_of)]


class Changed(TypedDict):
    """The answer to a change of a client."""

    client_id: str
    was_connected: bool


class Deleted(TypedDict):
    """The answer to a deletion of retained messages."""

    deleted: int
    goes_on: bool
    """True if the same request may delete more."""


EndClient = Callable[[bool, str], Awaitable[Response]]
"""Ends a connection, or with True the session too, of this client id."""


async def change_client(end: EndClient, request: Request, connection: HttpConnection) -> Response:
    """End a connection or a session. Return 200, 404 without such a client, or 503 without a commit
    in time. Raises BadRequest."""
    client_id = client_id_of(await connection.body())
    response = await end(request.path == FORGET, client_id)
    return audit(request, response, client_id=client_id)


async def end_client(
    node: Node, clock: Callable[[], float], is_forgotten: bool, client_id: str
) -> Response:
    """End a connection, or also the session, of a broker; return after the commit."""
    now_s = clock()
    session = node.registry.sessions.get(client_id)
    if session is None or (not is_forgotten and session.outbound is None):
        what = "session" if is_forgotten else "connection"
        return json_response({"error": f"no {what} of this client here"}, 404)
    was_connected = session.outbound is not None
    if is_forgotten:
        session.expiry_interval_s = 0
    node.handshakes.end_client(client_id, ReasonCode.ADMINISTRATIVE_ACTION, now_s)
    if is_forgotten and node.registry.sessions.get(client_id) is session:
        node.registry.end(session, now_s)
    if not await _is_committed(node, now_s, client_id):
        return json_response(NOT_COMMITTED, 503)
    return json_response(Changed(client_id=client_id, was_connected=was_connected))


async def _is_committed(node: Node, now_s: float, client_id: str = "") -> bool:
    """Wait for the commit of what has changed; return False if it does not come in time."""
    committed = trio.Event()
    node.journal.append([], lambda _: committed.set(), now_s, client_id)
    with trio.move_on_after(COMMIT_S):
        await committed.wait()
    return committed.is_set()


@final
class RetainedChanges:
    """Deletes retained messages of a broker."""

    def __init__(self, node: Node, clock: Callable[[], float], turns: AnswerTurns) -> None:
        self._node = node
        self._clock = clock
        self._turns = turns

    async def delete(self, request: Request, connection: HttpConnection) -> Response:
        """Return 200, or 503 without a commit in time. Raises BadRequest. Messages that the broker
        itself publishes below `$SYS/` stay."""
        filter = retained_filter_of(await connection.body())
        connection.is_served = True
        response, deleted = await self._delete(filter)
        connection.is_served = False
        return audit(request, response, filter=filter, deleted=deleted)

    async def _delete(self, filter: str) -> tuple[Response, int]:
        """Delete messages; return the answer and their number."""
        steps = matching(self._node.router.retained, filter, self._clock)
        deleted, goes_on = 0, True
        while goes_on and deleted < DELETIONS_MAX:
            found = await self._turns.take(lambda: self._delete_some(next(steps, None)))
            if isinstance(found, Response):
                return found, deleted
            goes_on = found is not None
            deleted += found or 0
        if not await _is_committed(self._node, self._clock()):
            return json_response(NOT_COMMITTED, 503), deleted
        return json_response(Deleted(deleted=deleted, goes_on=goes_on)), deleted

    def _delete_some(self, found: list[RetainedMessage] | None) -> int | None:
        """Delete the messages that this node orders; return their number, or None at the end."""
        if found is None:
            return None
        router, deleted = self._node.router, 0
        for entry in found:
            topic = entry.publish.topic
            if not topic.startswith("$SYS/") and router.peers.orders_retained(topic):
                router.retaining.keep(Publish(topic, b"", retain=True), NEVER_S)
                deleted += 1
        return deleted


def client_id_of(body: bytes) -> str:
    """Return the client id that `body` names. Raises BadRequest."""
    return form_of(body, _Client, '{"client_id": "..."}')["client_id"]


def retained_filter_of(body: bytes) -> str:
    """Return the filter that `body` names. Raises BadRequest."""
    return form_of(body, _Filter, '{"filter": "a topic, or a filter with + and #"}')["filter"]
