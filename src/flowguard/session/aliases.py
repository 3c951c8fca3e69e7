"""Topic aliases that we set towards one client ([MQTT 5.0, 3.3.2.3.4]), valid for a connection."""

from dataclasses import replace
from typing import TYPE_CHECKING, final

from flowguard.codec.encoder import publish_frame
from flowguard.records import Delivery
from flowguard.session.state import alias_bytes
from flowguard.types import MQTT_5, Properties

if TYPE_CHECKING:
    from flowguard.session.host import Host
    from flowguard.session.session import Session


@final
class TopicAliases:
    """The first topics sent to a client get one; without room for more, others go without."""

    __slots__ = ("_aliases_max", "_by_topic", "_host", "_session", "qos_max")

    def __init__(self, aliases_max: int, session: "Session", host: "Host") -> None:
        self._aliases_max = aliases_max
        self._session = session
        self._host = host
        self.qos_max = host.settings.session.topic_alias_qos_max
        self._by_topic: dict[str, int] = {}

    def frame(self, delivery: Delivery, properties: Properties) -> tuple[bytes, bytes]:
        """(head, tail) of the PUBLISH for this client, its topic replaced or introduced."""
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
        return self._session.charge_state(more_bytes, self._host) is None

    def forget(self, topic: str) -> None:
        """A frame that is not sent defines no alias; setting one again is always allowed."""
        if self._by_topic and next(reversed(self._by_topic)) == topic:
            self._by_topic.popitem()
            self._charge(-alias_bytes(topic))

    def clear(self) -> None:
        """The connection is over."""
        self._charge(-sum(alias_bytes(topic) for topic in self._by_topic))
        self._by_topic.clear()
