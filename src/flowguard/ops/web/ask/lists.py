"""Lists of a node, in pages of JSON.

    GET /clients?id=car-*&user=U&address=10.&state=absent
    GET /clients/flapping
    GET /subscriptions?client=car-*&filter=a/+
    GET /topics/who-gets?topic=a/b
    GET /retained?filter=a/%23

Each takes `limit` and `cursor`, too; the answer has `next`, the cursor of the next page, or null.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, final

import trio
from typing_extensions import TypedDict

from flowguard.node.node import Node
from flowguard.ops.lists.clients import ClientListing, ListedClient, row_of
from flowguard.ops.lists.flapping import FlappingClient, FlappingListing
from flowguard.ops.lists.pages import Listing, Lists, limit_of
from flowguard.ops.lists.retained import ListedRetained, RetainedListing
from flowguard.ops.lists.subscriptions import (
    ListedReceiver,
    ListedSubscription,
    ReceiverListing,
    SubscriptionListing,
)
from flowguard.ops.web.http_connection import JSON_TYPE, Request, Response, json_response
from flowguard.ops.web.turns import AnswerTurns

CLIENTS: Final = "/clients"
FLAPPING: Final = "/clients/flapping"
SUBSCRIPTIONS: Final = "/subscriptions"
WHO_GETS: Final = "/topics/who-gets"
RETAINED: Final = "/retained"
ROWS: Final = {
    CLIENTS: "clients",
    FLAPPING: "clients",
    SUBSCRIPTIONS: "subscriptions",
    WHO_GETS: "receivers",
    RETAINED: "retained",
}
"""Key of the rows in the answer, by path."""


class ClientPage(TypedDict):
    clients: list[ListedClient]
    next: str | None
    """Cursor of the next page, or null after the last one."""


class FlappingPage(TypedDict):
    clients: list[FlappingClient]
    next: str | None


class SubscriptionPage(TypedDict):
    subscriptions: list[ListedSubscription]
    next: str | None


class ReceiverPage(TypedDict):
    receivers: list[ListedReceiver]
    next: str | None


class RetainedPage(TypedDict):
    retained: list[ListedRetained]
    next: str | None


MakeListing = Callable[[Mapping[str, str]], Listing[Any, Any]]
"""Makes a list from the parameters of a request; raises ValueError if one is wrong."""


def listings_of(node: Node, clock: Callable[[], float]) -> dict[str, MakeListing]:
    """Return the lists of a broker, by path."""
    sessions, lives = node.registry.sessions, node.counters.lives
    return {
        CLIENTS: partial(ClientListing, sessions, row_of),
        FLAPPING: partial(FlappingListing, lives, sessions, row_of, clock),
        SUBSCRIPTIONS: partial(SubscriptionListing, node),
        WHO_GETS: partial(ReceiverListing, node),
        RETAINED: partial(RetainedListing, node, clock),
    }


@final
class ListAnswers:
    """Answers requests for lists."""

    def __init__(self, makers: Mapping[str, MakeListing], turns: AnswerTurns) -> None:
        self._turns = turns
        self._lists = Lists()
        self._makers = makers

    def has(self, path: str) -> bool:
        return path in self._makers

    async def answer(self, request: Request) -> Response:
        """Return a page; 400 for wrong parameters, 410 if the cursor's list is no longer kept."""
        try:
            listing = self._makers[request.path](request.query)
            limit = limit_of(request.query)
        except ValueError as error:
            return json_response({"error": str(error)}, 400)
        cursor = request.query.get("cursor", "")
        page = await self._turns.take(lambda: self._lists.begin(listing, cursor, limit))
        if page is None:
            return json_response({"error": "this list is no longer kept: begin again"}, 410)
        if isinstance(page, Response):
            return page
        refusal = await self._turns.take_all(page.step)
        if refusal is not None:
            return refusal
        await trio.lowlevel.checkpoint()  # The broker works between the last step and the answer.
        following = json.dumps(self._lists.finish(page)).encode()
        body = b'{"%s": %s, "next": %s}' % (ROWS[request.path].encode(), page.text(), following)
        return Response(200, body, JSON_TYPE)
