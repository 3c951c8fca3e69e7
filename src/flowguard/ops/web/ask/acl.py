"""`POST /acl/test`: may a client publish to a topic or subscribe to a filter, and by which rule?

It changes nothing. Other machines need the token.
"""

from dataclasses import asdict
from typing import Annotated, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from flowguard.access.rights import Principal
from flowguard.access.rules import Rules
from flowguard.access.verdicts import AclVerdict, publish_verdict, subscribe_verdict
from flowguard.node.node import Node
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)
from flowguard.routing import has_wildcard, parse_shared, valid_filter

ACL_TEST: Final = "/acl/test"
WANTED: Final = (
    '{"client_id": "...", "action": "publish" or "subscribe", "topic": "..."}, and if wanted '
    '"user", "roles", "qos", "retain"'
)


class AclQuestion(TypedDict):
    client_id: Annotated[str, Field(min_length=1)]
    action: Literal["publish", "subscribe"]
    topic: str
    """Topic, or the filter of a subscription."""
    user: NotRequired[str]
    """User, or "" for a client without one. If absent, that of the client's session."""
    roles: NotRequired[list[str]]
    """Roles that a token gives to the user."""
    qos: NotRequired[Annotated[int, Field(ge=0, le=2)]]
    retain: NotRequired[bool]


class AclAnswer(TypedDict):
    allowed: bool
    rule: str
    """The rule with its file, or the reason if no rule decides."""
    roles: list[str]
    qos_max: int | None
    """Highest QoS of an allowed subscription."""


def client_id_of_question(body: bytes) -> str:
    """Return the client id that is asked about. Raises BadRequest."""
    return form_of(body, AclQuestion, WANTED)["client_id"]


async def acl_response(node: Node, _: Request, connection: HttpConnection) -> Response:
    """Return 200, or 400 for a topic that is none. Raises BadRequest."""
    question = form_of(await connection.body(), AclQuestion, WANTED)
    hooks, client_id = node.hooks, question["client_id"]
    session = node.registry.sessions.get(client_id)
    principal = None
    if "user" not in question and session is not None and session.rights is not None:
        principal = session.rights.principal
    try:
        verdict = verdict_of(question, hooks.rules, principal)
    except ValueError as error:
        return json_response({"error": str(error)}, 400)
    if verdict.allowed and hooks.authorizer is not None:
        ask = (
            hooks.authorizer.may_publish
            if question["action"] == "publish"
            else hooks.authorizer.may_subscribe
        )
        if not ask(client_id, question["topic"]):
            verdict = AclVerdict(allowed=False, rule="the authorizer of the program")
    return json_response(asdict(verdict))


def verdict_of(
    question: AclQuestion, rules: Rules | None, principal: Principal | None = None
) -> AclVerdict:
    """Answer a question; `principal` is used if it names no user. Raises ValueError."""
    topic, client_id, user = question["topic"], question["client_id"], question.get("user", "")
    if user:
        principal = Principal(user, tuple(question.get("roles", ())))
    if question["action"] == "publish":
        if not valid_filter(topic) or has_wildcard(topic):
            raise ValueError(f"{topic!r} is no topic of a message")
        qos, retain = question.get("qos", 0), question.get("retain", False)
        return publish_verdict(rules, principal, client_id, topic, qos=qos, retain=retain)
    if not valid_filter(topic):
        raise ValueError(f"{topic!r} is no topic filter")
    shared = parse_shared(topic)
    filter = topic if shared is None else shared[1]
    return subscribe_verdict(rules, principal, client_id, filter, shared=shared is not None)
