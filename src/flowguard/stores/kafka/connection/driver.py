"""The private parts of aiokafka that flowguard needs.

Public calls can neither commit an offset for a group without members, nor choose the generation of
a commit, nor return a topic's id. If a release of aiokafka lacks one of these parts, `check_driver`
raises at the start, or the call that needs it raises StoreError.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    IllegalGenerationError,
    IncompatibleBrokerVersion,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from flowguard.errors import ConfigError, StoreError

_SEND: Final = "_send_request"
_COORDINATOR: Final = "_coordinator"
_ENDS: Final = (
    (_COORDINATOR, "_stop_heartbeat_task"),
    (_COORDINATOR, "_stop_commit_offsets_refresh_task"),
    ("_fetcher", "close"),
    ("_client", "close"),
)
"""Calls in `AIOKafkaConsumer.stop`, except that which leaves the group."""
_UNKNOWN_TOPIC: Final = 3
_TEXT: Final = CompactString("utf-8")
_NUMBERS: Final = CompactArray(Int32)
ID_BYTES: Final = 16
NO_MEMBER: Final = -1, ""
"""Generation and member id in a commit for a group without members."""
FENCED: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)
"""Answers to a commit by a client without partitions in the group's present generation."""
_NO_ID: Final = bytes(ID_BYTES)


class TopicSeen(NamedTuple):
    """The present state of a topic; a recreated topic has another id."""

    id: bytes
    partitions: int
    replicas: int
    """Number of replicas of the partition with the fewest."""


def check_driver() -> None:
    """Raises ConfigError if the installed aiokafka lacks a part that can be checked offline."""
    if not hasattr(AIOKafkaAdminClient, _SEND):
        raise ConfigError(_lacks(f"AIOKafkaAdminClient.{_SEND}"))


def _lacks(name: str) -> str:
    return (
        f"aiokafka {aiokafka.__version__} has no {name}, which flowguard needs: install aiokafka "
        "0.14, with which it was tried"
    )


async def send(admin: Any, request: Any, node: int | None = None) -> Any:
    """Return the answer of `node`, or of any node if it is None."""
    found = getattr(admin, _SEND, None)
    if found is None:
        raise StoreError(_lacks(f"AIOKafkaAdminClient.{_SEND}"))
    return await found(request, node)


def generation_of(consumer: Any) -> tuple[int, str]:
    """Return the group generation in which a consumer has its partitions, and its member id."""
    coordinator = getattr(consumer, _COORDINATOR, None)
    try:
        return coordinator.generation, coordinator.member_id  # type: ignore[union-attr]
    except AttributeError:
        pass
    raise StoreError(_lacks(f"AIOKafkaConsumer.{_COORDINATOR} with generation and member_id"))


async def abandon(consumer: Any) -> None:
    """End a consumer whose `stop` was cancelled. `stop` waits for the group first, so tasks and
    sockets would stay open without this. Raises KafkaError, OSError."""
    for part, name in _ENDS:
        end = getattr(getattr(consumer, part, None), name, None)
        if end is not None:
            await end()


async def commit_offsets(
    admin: Any,
    group: str,
    member: tuple[int, str],
    topics: Sequence[tuple[str, Sequence[tuple[int, int, str]]]],
    coordinator: int,
) -> None:
    """Commit partition, offset and metadata by topic. Raises KafkaError."""
    generation, member_id = member
    request = OffsetCommitRequest(group, generation, member_id, -1, list(topics))
    answer = await send(admin, request, coordinator)
    for _, partitions in answer.topics:
        for _, code in partitions:
            if code:
                raise for_code(code)


async def topic_seen(admin: Any, topic: str, node: int | None = None) -> TopicSeen | None:
    """Return a topic as `node` (None: any node) has it, or None if it does not exist.

    The answer may be slightly outdated. Does not create the topic. Raises KafkaError;
    IncompatibleBrokerVersion if the server is older than 2.8.
    """
    try:
        answer = await send(admin, _TopicRequest(topic), node)
    except NotImplementedError as error:
        raise IncompatibleBrokerVersion("topics have no ids") from error
    ((code, _, id, _, partitions, _, _),) = answer.topics
    if code == _UNKNOWN_TOPIC:
        return None
    if code:
        raise for_code(code)
    return TopicSeen(id, len(partitions), min((len(each[4]) for each in partitions), default=0))


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(ID_BYTES)


class _TopicResponse(Response):  # type: ignore[misc]
    """Metadata in version 10, the first with topic ids (https://kafka.apache.org/protocol)."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", _NUMBERS),
                        ("isr", _NUMBERS),
                        ("offline_replicas", _NUMBERS),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _TopicRequestV10(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _TopicResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicRequest(Request[_TopicRequestV10]):  # type: ignore[misc]
    API_KEY = 3

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def build(self, request_struct_class: type[_TopicRequestV10]) -> _TopicRequestV10:
        return request_struct_class([(_NO_ID, self._topic, {})], False, False, False, {})
