"""TbmqReader: reads the queues of a TBMQ 2 in Redis, in the format that its authors published.

    {CLIENT_ID}_messages        sorted set: names of the keys of its messages, in order
    {CLIENT_ID}_messages_ID     string with a time to live: the message as JSON, payload in base64
    {CLIENT_ID}_last_packet_id  not needed

Sessions, subscriptions and retained messages are not in Redis: TBMQ has them in Kafka. The reader
changes nothing; stop the TBMQ broker first.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from flowguard.errors import CorruptionError
from flowguard.records import NEVER_S, Delivery
from flowguard.stores.redis.connection.cluster import RedisCluster
from flowguard.stores.redis.connection.server import literal
from flowguard.types import NO_PROPERTIES, Properties, Publish
from store_tools.redis_reader import reach

PAGE: Final = 256
_BEGIN: Final = b"{"
_END: Final = b"}_messages"


@dataclass(slots=True)
class TbmqMessage:
    """A message of a queue; `delivery` is None if the client has it, and still needs a PUBREL."""

    packet_id: int
    delivery: Delivery | None


@final
class TbmqReader:
    """Reads the keys below `prefix`, which is empty in most installations."""

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        wall_s: float,
    ) -> None:
        """`wall_s` is the present Unix time. Raises `ConfigError`, `StoreError`."""
        self._link = reach(url, clock=clock, sleep=sleep)
        self._begin = prefix.encode() + _BEGIN
        self._wall_s = wall_s

    def close(self) -> None:
        self._link.close()

    def client_ids(self) -> list[str]:
        """Return all clients with a queue, in order. O(all keys of the servers)."""
        link = self._link
        servers = link.primaries if isinstance(link, RedisCluster) else [link]
        pattern = literal(self._begin) + b"*" + _END
        found: set[str] = set()
        for server in servers:
            cursor = b"0"
            while True:
                words = (b"SCAN", cursor, b"MATCH", pattern, b"COUNT", PAGE, b"TYPE", b"zset")
                ((cursor, keys),) = server.ask([words])
                found |= {key[len(self._begin) : -len(_END)].decode() for key in keys}
                if cursor == b"0":
                    break
        return sorted(found)

    def messages(self, client_id: str) -> Iterator[TbmqMessage | CorruptionError]:
        """Yield the messages of a client, in order, with an error in place of an unreadable one.

        Expired messages are skipped, as TBMQ does."""
        queue = self._begin + client_id.encode() + _END
        first = 0
        while True:
            (names,) = self._link.ask([(b"ZRANGE", queue, first, first + PAGE - 1)])
            if not names:
                return
            answers = self._link.ask(
                [(command, name) for name in names for command in (b"GET", b"PTTL")]
            )
            for name, text, left_ms in zip(names, answers[::2], answers[1::2], strict=True):
                if text is None:
                    continue
                try:
                    yield _message(json.loads(text), self._wall_s, left_ms)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    key = name.decode(errors="replace")
                    yield CorruptionError(f"{key} is no message of TBMQ: {error!r}")
            first += PAGE


def _message(fields: dict[str, Any], wall_s: float, left_ms: int) -> TbmqMessage:
    """Return the message. Raises ValueError, KeyError, TypeError or AttributeError if it is
    invalid."""
    packet_id = int(fields["packetId"])
    if not 0 < packet_id < 65_536:
        raise ValueError(f"packetId {packet_id}")
    if fields.get("packetType") == "PUBREL":
        return TbmqMessage(packet_id, None)
    qos = int(fields["qos"])
    if qos not in {1, 2}:
        raise ValueError(f"qos {qos}")
    topic = fields["topicName"] if "topicName" in fields else fields["topic"]
    if not topic or any(each in topic for each in "+#\0"):
        raise ValueError(f"topic {topic!r}")
    interval_s = fields.get("msgExpiryInterval")
    expires_at_s = NEVER_S if interval_s is None or left_ms < 0 else wall_s + left_ms / 1_000
    identifiers = tuple(map(int, fields.get("subscriptionIds") or ()))
    message = Publish(
        topic,
        b64decode(fields.get("payload") or "", validate=True),
        qos,
        bool(fields.get("retained")),
        properties=_properties(fields),
    )
    return TbmqMessage(packet_id, Delivery(message, qos, message.retain, identifiers, expires_at_s))


def _properties(fields: dict[str, Any]) -> Properties:
    pairs = (fields.get("userProperties") or {}).get("props") or ()
    correlation = fields.get("correlationData")
    found = Properties(
        payload_format_indicator=fields.get("payloadFormatIndicator"),
        message_expiry_interval=fields.get("msgExpiryInterval"),
        content_type=fields.get("contentType"),
        response_topic=fields.get("responseTopic"),
        correlation_data=None if correlation is None else b64decode(correlation, validate=True),
        user_properties=tuple((str(pair["k"]), str(pair["v"])) for pair in pairs),
    )
    return NO_PROPERTIES if found == Properties() else found
