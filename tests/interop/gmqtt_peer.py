"""gmqtt: its own protocol on asyncio."""

import asyncio
from typing import Any

import pytest

from flowguard.types import PACKET_ID_MAX
from tests.interop.event_loop import EventLoop
from tests.interop.peer import Connection, Message, Opening, Peer, Subscription

gmqtt = pytest.importorskip(
    "gmqtt", reason="gmqtt is missing: make test installs it (extra: clients)"
)
from gmqtt.mqtt.constants import MQTTv50, MQTTv311  # noqa: E402
from gmqtt.storage import PersistentStorage  # noqa: E402

PROTOCOLS = {"3.1.1": MQTTv311, "5.0": MQTTv50}
NO_RECONNECT = {"reconnect_retries": -2}
"""0 would still try once, -1 is for ever."""
MANY = ("subscription_identifier", "user_property")
OWN_KEYS = ("dup", "retain", "topic_alias")
"""Keys that gmqtt adds to the properties."""
OWN_NAMES = {"payload_format_indicator": "payload_format_id"}
NAMES = {own: name for name, own in OWN_NAMES.items()}


def to_gmqtt(message: Message) -> Any:
    properties = {OWN_NAMES.get(name, name): value for name, value in message.properties.items()}
    return gmqtt.Message(message.topic, message.payload, message.qos, message.retain, **properties)


class GmqttConnection(Connection):
    def __init__(self, peer: Peer, opening: Opening) -> None:
        super().__init__()
        self._engine = peer.engines.get(EventLoop)
        self._storage = PersistentStorage()
        self._done: dict[int, asyncio.Future[list[int]]] = {}
        self._client: Any = None
        self._receive_maximum = PACKET_ID_MAX
        self._engine.run(self._connect(peer, opening))
        if opening.subscriptions:
            granted = self.subscribe(*opening.subscriptions)
            assert granted == [each.qos for each in opening.subscriptions]

    async def _connect(self, peer: Peer, opening: Opening) -> None:
        will = opening.will
        rest: dict[str, Any] = {}
        if peer.is_5:
            rest = {"session_expiry_interval": opening.expiry_s, "topic_alias_maximum": 10}
        self._client = client = gmqtt.Client(
            opening.client_id,
            clean_session=opening.clean,
            persistent_storage=self._storage,
            will_message=None if will is None else to_gmqtt(will),
            **rest,
        )
        client.set_config(NO_RECONNECT)
        client.on_connect = self._on_connect
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_done
        client.on_unsubscribe = self._on_done
        await client.connect(
            "127.0.0.1",
            peer.port,
            keepalive=opening.keep_alive_s,
            version=PROTOCOLS[peer.version],
        )

    def _on_connect(self, client: Any, flags: int, code: int, properties: Any) -> None:
        self.session_present = bool(flags)
        self._receive_maximum = properties.get("receive_maximum", [PACKET_ID_MAX])[0]

    def _on_disconnect(self, client: Any, packet: Any, exc: Any = None) -> None:
        self.ended.put(packet[0] if packet else None)

    def _on_done(self, client: Any, mid: int, codes: Any, properties: Any = None) -> None:
        self._done.pop(mid).set_result(list(codes))

    def _on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]
    ) -> int:
        values = {
            NAMES.get(name, name): value if name in MANY else value[0]
            for name, value in properties.items()
            if name not in OWN_KEYS
        }
        self.inbox.put(Message(topic, payload, qos, bool(properties["retain"]), values))
        return 0

    async def _wait_done(self, mid: int) -> list[int]:
        self._done[mid] = asyncio.get_running_loop().create_future()
        return await self._done[mid]

    def subscribe(self, *subscriptions: Subscription) -> list[int]:
        return self._engine.run(self._subscribe(subscriptions))

    async def _subscribe(self, subscriptions: tuple[Subscription, ...]) -> list[int]:
        wanted = [
            gmqtt.Subscription(
                each.filter,
                each.qos,
                each.no_local,
                each.retain_as_published,
                each.retain_handling,
                each.identifier or None,
            )
            for each in subscriptions
        ]
        start_time = subscriptions[0].start_time
        more = {} if start_time is None else {"user_property": ("start-time", str(start_time))}
        return await self._wait_done(self._client.subscribe(wanted, **more))

    def unsubscribe(self, filter: str) -> None:
        self._engine.run(self._unsubscribe(filter))

    async def _unsubscribe(self, filter: str) -> None:
        await self._wait_done(self._client.unsubscribe(filter))

    def publish(self, *messages: Message) -> None:
        self._engine.run(self._publish(messages))

    async def _publish(self, messages: tuple[Message, ...]) -> None:
        # gmqtt raises OverflowError where it would have to wait, one below the Receive Maximum.
        for number, each in enumerate(messages, 1):
            self._client.publish(to_gmqtt(each))
            if number % (self._receive_maximum - 1) == 0:
                await self._storage.wait_empty()
        await self._storage.wait_empty()

    def disconnect(self) -> None:
        self._engine.run(self._client.disconnect())

    def cut(self) -> None:
        self._engine.run(self._cut())

    async def _cut(self) -> None:
        self._client._is_active = False
        self._client._connection._transport.abort()  # gmqtt shows no other way to fall silent
        await self._client._connection.close()


class Gmqtt(Peer):
    def connect(self, opening: Opening) -> Connection:
        return GmqttConnection(self, opening)
