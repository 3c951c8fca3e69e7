"""paho-mqtt, with version 2 of its callback API and its own network thread."""

import queue
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from tests.interop.broker import PATIENCE_S
from tests.interop.peer import Connection, Message, Opening, Peer, Subscription

mqtt = pytest.importorskip(
    "paho.mqtt.client", reason="paho-mqtt is missing: make test installs it (extra: clients)"
)
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402
from paho.mqtt.subscribeoptions import SubscribeOptions  # noqa: E402

PROTOCOLS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5.0": mqtt.MQTTv5}
NAMES = {
    "content_type": "ContentType",
    "correlation_data": "CorrelationData",
    "message_expiry_interval": "MessageExpiryInterval",
    "payload_format_indicator": "PayloadFormatIndicator",
    "response_topic": "ResponseTopic",
    "session_expiry_interval": "SessionExpiryInterval",
    "subscription_identifier": "SubscriptionIdentifier",
    "user_property": "UserProperty",
    "will_delay_interval": "WillDelayInterval",
}


def to_paho(packet_type: int, properties: dict[str, Any]) -> Any:
    """Return paho's properties, or None without any."""
    if not properties:
        return None
    result = Properties(packet_type)
    for name, value in properties.items():
        setattr(result, NAMES[name], value)
    return result


def from_paho(properties: Any) -> dict[str, Any]:
    if properties is None:
        return {}
    return {
        name: getattr(properties, NAMES[name]) for name in NAMES if NAMES[name] in vars(properties)
    }


def paho_subscriptions(subscriptions: Iterable[Subscription], is_5: bool) -> Any:
    if not is_5:
        return [(each.filter, each.qos) for each in subscriptions]
    return [
        (
            each.filter,
            SubscribeOptions(
                each.qos, each.no_local, each.retain_as_published, each.retain_handling
            ),
        )
        for each in subscriptions
    ]


def identifier_of(subscriptions: tuple[Subscription, ...]) -> Any:
    """The properties of a SUBSCRIBE."""
    first = subscriptions[0]
    properties: dict[str, Any] = {}
    if first.identifier:
        properties["subscription_identifier"] = first.identifier
    if first.start_time is not None:
        properties["user_property"] = [("start-time", str(first.start_time))]
    return to_paho(PacketTypes.SUBSCRIBE, properties)


def end_loop(client: Any) -> None:
    """Wait until paho's thread has ended. It ends by itself with the connection, and then forgets
    itself: if that happens between loop_stop's check and its join, no thread is left to join."""
    with suppress(AttributeError):
        client.loop_stop()


class PahoConnection(Connection):
    def __init__(self, peer: Peer, opening: Opening) -> None:
        super().__init__()
        self._is_5 = peer.is_5
        self._connected: queue.Queue[tuple[bool, int]] = queue.Queue()
        self._done: queue.Queue[tuple[int, list[int]]] = queue.Queue()
        self._client = client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            opening.client_id,
            clean_session=None if peer.is_5 else opening.clean,
            protocol=PROTOCOLS[peer.version],
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_subscribe = self._on_done
        client.on_unsubscribe = self._on_done
        will = opening.will
        if will is not None:
            properties = to_paho(PacketTypes.WILLMESSAGE, will.properties)
            client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        rest: dict[str, Any] = {}
        if peer.is_5:
            expiry = {"session_expiry_interval": opening.expiry_s} if opening.expiry_s else {}
            rest = {
                "clean_start": opening.clean,
                "properties": to_paho(PacketTypes.CONNECT, expiry),
            }
        client.connect("127.0.0.1", peer.port, opening.keep_alive_s, **rest)
        client.loop_start()
        self.session_present, code = self._connected.get(timeout=PATIENCE_S)
        assert code == 0
        if opening.subscriptions:
            granted = self.subscribe(*opening.subscriptions)
            assert granted == [each.qos for each in opening.subscriptions]

    def _on_connect(self, client: Any, userdata: Any, flags: Any, code: Any, props: Any) -> None:
        self._connected.put((flags.session_present, code.value))

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, code: Any, props: Any) -> None:
        self.ended.put(code.value if flags.is_disconnect_packet_from_server else None)

    def _on_done(self, client: Any, userdata: Any, mid: int, codes: Any, props: Any) -> None:
        self._done.put((mid, [code.value for code in codes]))

    def _on_message(self, client: Any, userdata: Any, got: Any) -> None:
        properties = from_paho(got.properties if self._is_5 else None)
        self.inbox.put(Message(got.topic, got.payload, got.qos, got.retain, properties))

    def _wait_done(self, result: int, mid: int) -> list[int]:
        assert result == mqtt.MQTT_ERR_SUCCESS
        done, codes = self._done.get(timeout=PATIENCE_S)
        assert done == mid
        return codes

    def subscribe(self, *subscriptions: Subscription) -> list[int]:
        topics = paho_subscriptions(subscriptions, self._is_5)
        return self._wait_done(
            *self._client.subscribe(topics, properties=identifier_of(subscriptions))
        )

    def unsubscribe(self, filter: str) -> None:
        self._wait_done(*self._client.unsubscribe(filter))

    def publish(self, *messages: Message) -> None:
        sent = [
            self._client.publish(
                each.topic,
                each.payload,
                each.qos,
                each.retain,
                to_paho(PacketTypes.PUBLISH, each.properties),
            )
            for each in messages
        ]
        for info in sent:
            info.wait_for_publish(PATIENCE_S)
            assert info.is_published()

    def disconnect(self) -> None:
        self._client.disconnect()
        end_loop(self._client)

    def cut(self) -> None:
        sock = self._client.socket()
        if sock is not None:
            with suppress(OSError):  # The broker was faster.
                sock.shutdown(socket.SHUT_RDWR)
        end_loop(self._client)


class Paho(Peer):
    def connect(self, opening: Opening) -> Connection:
        return PahoConnection(self, opening)
