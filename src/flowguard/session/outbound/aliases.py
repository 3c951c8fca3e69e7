"""Topic aliases of broker and client, valid for one connection ([MQTT 5.0, 3.3.2.3.4])."""

from dataclasses import replace
from typing import final

from flowguard.codec.encoder import publish_frame
from flowguard.errors import ProtocolViolation
from flowguard.records import Delivery
from flowguard.session.node_state import NodeState
from flowguard.session.state_bytes import StateAccount, alias_bytes
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode


@final
class TopicAliases:
    """Aliases for the first topics sent to a client, within its maximum."""

    __slots__ = ("_aliases_max", "_by_topic", "_node", "_account", "qos_max")

    def __init__(self, aliases_max: int, account: StateAccount, node: NodeState) -> None:
        self._aliases_max = aliases_max
        self._account = account
        self._node = node
        self.qos_max = node.settings.session.topic_alias_qos_max
        self._by_topic: dict[str, int] = {}

    def frame(self, delivery: Delivery, properties: Properties) -> tuple[bytes, bytes]:
        """Return head and tail of the PUBLISH for this client, its topic replaced or introduced."""
        message = delivery.message
        by_topic = self._by_topic
        alias = by_topic.get(message.topic)
        if alias is not None:
            message = replace(message, topic="")
        elif len(by_topic) < self._aliases_max and self._charge(alias_bytes(message.topic)):
            alias = by_topic[message.topic] = len(by_topic) + 1
        if alias is not None:
            properties = replace(properties, topic_alias=alias)
        return publish_frame(message, MQTT_5, delivery.qos, delivery.retain, properties)

    def _charge(self, more_bytes: int) -> bool:
        return self._account.charge(more_bytes, self._node) is None

    def forget(self, topic: str) -> None:
        """Remove the alias of a frame that is not sent; setting one again is always allowed."""
        if self._by_topic and next(reversed(self._by_topic)) == topic:
            self._by_topic.popitem()
            self._charge(-alias_bytes(topic))

    def clear(self) -> None:
        """Remove all aliases at the end of the connection."""
        self._charge(-sum(alias_bytes(topic) for topic in self._by_topic))
        self._by_topic.clear()


@final
class ClientAliases:
    __slots__ = ("_node", "_account", "topics")

    def __init__(self, account: StateAccount, node: NodeState) -> None:
        self._account = account
        self._node = node
        self.topics: dict[int, str] = {}
        """Topics by alias."""

    def resolve(self, packet: Publish) -> Publish:
        """Return the PUBLISH with its topic. Raises `ProtocolViolation`."""
        alias = packet.properties.topic_alias
        assert alias is not None
        if alias > self._node.topic_alias_maximum:
            # [MQTT-3.3.2-9]
            raise ProtocolViolation(
                f"topic alias {alias} is above the maximum", ReasonCode.TOPIC_ALIAS_INVALID
            )
        topic = self.topics.get(alias)
        if packet.topic:
            if packet.topic != topic:
                self._set(alias, packet.topic)
            return packet
        if topic is None:
            raise ProtocolViolation(f"topic alias {alias} was never set")
        return replace(packet, topic=topic)

    def _set(self, alias: int, topic: str) -> None:
        """Set an alias, and forget its former topic [MQTT-3.3.2-12]."""
        before = self.topics.get(alias)
        more_bytes = alias_bytes(topic) - (0 if before is None else alias_bytes(before))
        reason = self._account.charge(more_bytes, self._node)
        if reason is not None:
            self._node.counters.drop(reason)
            raise ProtocolViolation(
                "topic alias exceeds the memory limit of the session", ReasonCode.QUOTA_EXCEEDED
            )
        self.topics[alias] = topic

    def clear(self) -> None:
        """Remove all aliases at the end of the connection."""
        size_bytes = sum(alias_bytes(topic) for topic in self.topics.values())
        self._account.charge(-size_bytes, self._node)
        self.topics.clear()
