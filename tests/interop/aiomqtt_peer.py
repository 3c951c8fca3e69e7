"""aiomqtt: paho-mqtt's protocol under asyncio."""

import asyncio
import socket
from typing import Any

import pytest

from tests.interop.broker import PATIENCE_S
from tests.interop.event_loop import EventLoop
from tests.interop.paho_peer import (
    PacketTypes,
    from_paho,
    identifier_of,
    paho_subscriptions,
    to_paho,
)
from tests.interop.peer import Connection, Message, Opening, Peer, Subscription

aiomqtt = pytest.importorskip(
    "aiomqtt", reason="aiomqtt is missing: make test installs it (extra: clients)"
)

PROTOCOLS = {
    "3.1": aiomqtt.ProtocolVersion.V31,
    "3.1.1": aiomqtt.ProtocolVersion.V311,
    "5.0": aiomqtt.ProtocolVersion.V5,
}


class AiomqttConnection(Connection):
    def __init__(self, peer: Peer, opening: Opening) -> None:
        super().__init__()
        self._is_5 = peer.is_5
        self._engine = peer.engines.get(EventLoop)
        self._client: Any = None
        self._reader: asyncio.Task[None]
        self._engine.run(self._connect(peer, opening))
        if opening.subscriptions:
            granted = self.subscribe(*opening.subscriptions)
            assert granted == [each.qos for each in opening.subscriptions]

    async def _connect(self, peer: Peer, opening: Opening) -> None:
        rest: dict[str, Any] = {"clean_session": opening.clean}
        if peer.is_5:
            expiry = {"session_expiry_interval": opening.expiry_s} if opening.expiry_s else {}
            rest = {
                "clean_start": opening.clean,
                "properties": to_paho(PacketTypes.CONNECT, expiry),
            }
        will = opening.will
        if will is not None:
            properties = to_paho(PacketTypes.WILLMESSAGE, will.properties)
            rest["will"] = aiomqtt.Will(will.topic, will.payload, will.qos, will.retain, properties)
        self._client = aiomqtt.Client(
            "127.0.0.1",
            peer.port,
            identifier=opening.client_id,
            protocol=PROTOCOLS[peer.version],
            keepalive=opening.keep_alive_s,
            timeout=PATIENCE_S,
            **rest,
        )
        await self._client.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for got in self._client.messages:
                properties = from_paho(got.properties if self._is_5 else None)
                self.inbox.put(
                    Message(got.topic.value, got.payload, got.qos, bool(got.retain), properties)
                )
        except aiomqtt.MqttError as error:
            code = getattr(error.__cause__, "rc", None)
            self.ended.put(getattr(code, "value", None) if self._is_5 else None)

    def subscribe(self, *subscriptions: Subscription) -> list[int]:
        topics = paho_subscriptions(subscriptions, self._is_5)
        codes = self._engine.run(
            self._client.subscribe(topics, properties=identifier_of(subscriptions))
        )
        return [code.value for code in codes]

    def unsubscribe(self, filter: str) -> None:
        self._engine.run(self._client.unsubscribe(filter))

    def publish(self, *messages: Message) -> None:
        self._engine.run(self._publish(messages))

    async def _publish(self, messages: tuple[Message, ...]) -> None:
        for each in messages:
            properties = to_paho(PacketTypes.PUBLISH, each.properties)
            await self._client.publish(each.topic, each.payload, each.qos, each.retain, properties)

    def disconnect(self) -> None:
        self._engine.run(self._end())

    async def _end(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._client.__aexit__(None, None, None)

    def cut(self) -> None:
        self._engine.run(self._cut())

    async def _cut(self) -> None:
        sock = self._client._client.socket()  # aiomqtt shows no other way to fall silent
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        await asyncio.wait([self._reader])


class Aiomqtt(Peer):
    def connect(self, opening: Opening) -> Connection:
        return AiomqttConnection(self, opening)
