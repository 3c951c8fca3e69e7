"""Access rules of a Kafka: the driver has no request for them."""

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int32, Schema, String

from flowguard.stores.kafka.connection.driver import send
from tests.support.kafka import Kafka

RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
"""A client with a password may do all that no rule forbids; one without a password, anything."""
_GROUP, _LITERAL, _READ, _DENY = 3, 3, 3, 2
_RULE = (
    ("resource_type", Int8),
    ("resource_name", String("utf-8")),
    ("pattern_type", Int8),
    ("principal", String("utf-8")),
    ("host", String("utf-8")),
    ("operation", Int8),
    ("permission_type", Int8),
)


class _Answer(Response):
    """Only that it came."""

    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(("throttle_time_ms", Int32))


class _CreateRules(RequestStruct):
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(("creations", Array(*_RULE)))


class _DeleteRules(RequestStruct):
    API_KEY = 31
    API_VERSION = 1
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(("filters", Array(*_RULE)))


class _Rules(Request[_CreateRules | _DeleteRules]):
    """The driver has no such request."""

    API_KEY = 30

    def __init__(self, kind: type[RequestStruct], rule: tuple[object, ...]) -> None:
        self.API_KEY = kind.API_KEY
        self._CLASSES = (kind,)
        self._rule = rule

    def build(self, request_struct_class: type[RequestStruct]) -> RequestStruct:
        return request_struct_class([self._rule])


def deny(server: Kafka, group: str, *, is_denied: bool) -> None:
    """Whether the user that comes with a password may not be in a consumer group."""
    kind = _CreateRules if is_denied else _DeleteRules
    rule = (_GROUP, group, _LITERAL, "User:flowguard", "*", _READ, _DENY)

    async def ask(admin: object) -> object:
        return await send(admin, _Rules(kind, rule))

    server.call(ask)
