"""`/clients`: list the clients of a node, end a connection, end a session.

    GET  /clients?id=car-*&user=U&address=10.&state=absent&limit=100&cursor=C
    POST /clients/kick     {"client_id": "..."}: DISCONNECT with 0x98; the session stays
    POST /clients/forget   {"client_id": "..."}: end the session and its queue, too

Each change is a log event `audit`, and is answered after the commit.
"""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, final

import trio
from pydantic import Field
from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.clients import ClientLists, PageInMaking, Wanted
from flowguard.ops.web.callers import audit, refusal_of_change
from flowguard.ops.web.http_connection import (
    JSON_TYPE,
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)
from flowguard.ops.web.turns import AnswerTurns
from flowguard.types import ReasonCode

CLIENTS: Final = "/clients"
KICK: Final = "/clients/kick"
FORGET: Final = "/clients/forget"
CLIENT_CHANGES: Final = (KICK, FORGET)
COMMIT_S: Final = 5.0
"""Maximum wait for the commit, seconds."""


class _Client(TypedDict):
    client_id: Annotated[str, Field(min_length=1)]


EndClient = Callable[[bool, str], Awaitable[Response]]
"""Ends a connection, or with True the session too, of this client id."""


class Changed(TypedDict):
    """The answer to a change."""

    client_id: str
    was_connected: bool


@final
class Clients:
    """Answers requests for clients."""

    def __init__(
        self, lists: ClientLists[Any], end: EndClient, turns: AnswerTurns, *, has_token: bool
    ) -> None:
        """`has_token`: callers of other machines have shown it, and may make changes."""
        self._end = end
        self._turns = turns
        self._has_token = has_token
        self._lists = lists

    async def listed(self, request: Request) -> Response:
        """Return a page; 400 for wrong parameters, 410 if the cursor's list is no longer kept."""
        try:
            wanted = Wanted.of(request.query)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        page = await self._turns.take(lambda: self._lists.begin(wanted))
        if page is None:
            return json_response({"error": "this list is no longer kept: begin again"}, 410)
        if isinstance(page, Response):
            return page
        rows: list[str] = []
        goes_on: bool | Response = True
        while goes_on:
            goes_on = await self._turns.take(partial(encode_slice, page, rows))
            if isinstance(goes_on, Response):
                return goes_on
        following = json.dumps(self._lists.finish(page)["next"])
        body = f'{{"clients": [{", ".join(rows)}], "next": {following}}}'
        return Response(200, body.encode(), JSON_TYPE)

    async def change(self, request: Request, connection: HttpConnection) -> Response:
        """Return 200, 403 for callers that may not, 404 without such a client, 503 without a
        commit in time. Raises BadRequest."""
        refusal = refusal_of_change(request, with_token=self._has_token)
        if refusal is not None:
            return refusal
        client_id = client_id_of(await connection.body())
        response = await self._end(request.path == FORGET, client_id)
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
    committed = trio.Event()
    node.journal.append([], lambda _: committed.set(), now_s, client_id)
    with trio.move_on_after(COMMIT_S):
        await committed.wait()
    if not committed.is_set():
        return json_response({"error": "done, but the store has not committed it yet"}, 503)
    return json_response(Changed(client_id=client_id, was_connected=was_connected))


def encode_slice(page: PageInMaking[Any], rows: list[str]) -> bool:
    """Make and encode the next rows; the JSON of a whole page takes as long as five steps."""
    goes_on = page.step()
    rows += [json.dumps(row) for row in page.rows[len(rows) :]]
    return goes_on


def client_id_of(body: bytes) -> str:
    """Return the client id that `body` names. Raises BadRequest."""
    return form_of(body, _Client, '{"client_id": "..."}')["client_id"]
