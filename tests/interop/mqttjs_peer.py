"""MQTT.js: one Node.js process for all connections, spoken to in lines of JSON (mqttjs.cjs)."""

import base64
import itertools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.interop.broker import PATIENCE_S
from tests.interop.peer import Connection, Message, Opening, Peer, Subscription

SCRIPT = Path(__file__).with_name("mqttjs.cjs")
PACKAGE = SCRIPT.parents[2] / ".peers" / "node_modules" / "mqtt"
AT_ONCE = 100
"""MQTT.js does not heed the server's Receive Maximum, which is this."""
PROTOCOLS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
NAMES = {
    "content_type": "contentType",
    "correlation_data": "correlationData",
    "message_expiry_interval": "messageExpiryInterval",
    "payload_format_indicator": "payloadFormatIndicator",
    "response_topic": "responseTopic",
    "subscription_identifier": "subscriptionIdentifier",
    "topic_alias": "topicAlias",
    "user_property": "userProperties",
    "will_delay_interval": "willDelayInterval",
}


def to_js(properties: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in properties.items():
        if name == "user_property":
            value = {key: [v for k, v in value if k == key] for key, _ in value}
        elif name == "correlation_data":
            value = {"base64": base64.b64encode(value).decode()}
        elif name == "payload_format_indicator":
            value = bool(value)
        result[NAMES[name]] = value
    return result


def from_js(properties: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, js_name in NAMES.items():
        value = properties.get(js_name)
        if value is None or name == "topic_alias":
            continue
        if name == "user_property":
            lists = [(key, v if isinstance(v, list) else [v]) for key, v in value.items()]
            value = [(key, each) for key, values in lists for each in values]
        elif name == "correlation_data":
            value = base64.b64decode(value["base64"])
        elif name == "payload_format_indicator":
            value = int(value)
        elif name == "subscription_identifier":
            value = value if isinstance(value, list) else [value]
        result[name] = value
    return result


class Node:
    """The process."""

    def __init__(self) -> None:
        node = shutil.which("node")
        assert node is not None
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._listeners: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._process = subprocess.Popen(
            [node, str(SCRIPT), str(PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._thread.join(PATIENCE_S)
        self._process.communicate()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "answer" in said:
                self._answers.pop(said["answer"]).put(said)
            else:
                self._listeners[said["handle"]](said)

    def listen(self, listener: Callable[[dict[str, Any]], None]) -> int:
        """Return a number for a new connection, whose events go to `listener`."""
        handle = next(self._numbers)
        self._listeners[handle] = listener
        return handle

    def ask(self, do: str, handle: int, **rest: Any) -> Any:
        """Have it done, wait for the answer."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"number": number, "do": do, "handle": handle, **rest}) + "\n"
        )
        self._process.stdin.flush()
        said = answer.get(timeout=PATIENCE_S)
        assert "error" not in said, said["error"]
        return said["result"]


def message_to_js(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "payload": base64.b64encode(message.payload).decode(),
        "qos": message.qos,
        "retain": message.retain,
        "properties": to_js(message.properties),
    }


class MqttJsConnection(Connection):
    def __init__(self, peer: Peer, opening: Opening) -> None:
        super().__init__()
        self._node = peer.engines.get(Node)
        self._handle = self._node.listen(self._on_event)
        options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": peer.port,
            "protocolId": "MQIsdp" if peer.version == "3.1" else "MQTT",
            "protocolVersion": PROTOCOLS[peer.version],
            "clientId": opening.client_id,
            "clean": opening.clean,
            "keepalive": opening.keep_alive_s,
        }
        if peer.is_5:
            options["properties"] = {"topicAliasMaximum": 10}
            options["autoAssignTopicAlias"] = True
            if opening.expiry_s:
                options["properties"]["sessionExpiryInterval"] = opening.expiry_s
        will = None if opening.will is None else message_to_js(opening.will)
        self.session_present = self._node.ask("connect", self._handle, options=options, will=will)
        if opening.subscriptions:
            granted = self.subscribe(*opening.subscriptions)
            assert granted == [each.qos for each in opening.subscriptions]

    def _on_event(self, said: dict[str, Any]) -> None:
        if said["event"] == "message":
            self.inbox.put(
                Message(
                    said["topic"],
                    base64.b64decode(said["payload"]),
                    said["qos"],
                    said["retain"],
                    from_js(said["properties"]),
                )
            )
        else:
            self.ended.put(said["reason"])

    def subscribe(self, *subscriptions: Subscription) -> list[int]:
        wanted = {
            each.filter: {
                "qos": each.qos,
                "nl": each.no_local,
                "rap": each.retain_as_published,
                "rh": each.retain_handling,
            }
            for each in subscriptions
        }
        first = subscriptions[0]
        properties: dict[str, Any] = {}
        if first.identifier:
            properties["subscriptionIdentifier"] = first.identifier
        if first.start_time is not None:
            properties["userProperties"] = {"start-time": str(first.start_time)}
        granted: list[int] = self._node.ask(
            "subscribe", self._handle, subscriptions=wanted, properties=properties or None
        )
        return granted

    def unsubscribe(self, filter: str) -> None:
        self._node.ask("unsubscribe", self._handle, filter=filter)

    def publish(self, *messages: Message) -> None:
        for start in range(0, len(messages), AT_ONCE):
            group = [message_to_js(each) for each in messages[start : start + AT_ONCE]]
            self._node.ask("publish", self._handle, messages=group)

    def disconnect(self) -> None:
        self._node.ask("disconnect", self._handle)

    def cut(self) -> None:
        self._node.ask("cut", self._handle)


class MqttJs(Peer):
    def require(self) -> None:
        if shutil.which("node") is None:
            pytest.skip("node is missing: make test installs it (apt-get install nodejs npm)")
        if not PACKAGE.exists():
            pytest.skip("MQTT.js is missing: make test installs it (scripts/setup-test-peers.sh)")

    def connect(self, opening: Opening) -> Connection:
        return MqttJsConnection(self, opening)
