"""Traces of a real broker's clients, read from its HTTP port."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio

from flowguard.broker.sockets.listening import open_doorways
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq, Puback
from flowguard.network_settings import NetworkSettings
from flowguard.ops.trace import tracing, web
from flowguard.ops.trace.lines import LINES_MAX, TraceLines
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish
from tests.support.authority import Authority
from tests.support.http import Address, head, parts, read_all, request, send, watched
from tests.support.real import CALM, TEST_S, SlowStore, Wire, connect, open_wire, publishes, until

Line = dict[str, Any]


class Reader:
    """The lines of one trace, in chunks of HTTP/1.1."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = b""
        self.lines: list[Line] = []

    async def until(self, event: str, client_id: str = "", **fields: object) -> Line:
        """Return the first line, from the next on, of this event with these fields."""
        with trio.fail_after(TEST_S):
            while True:
                line = await self._next()
                is_fit = line["event"] == event and client_id in ("", line.get("client_id"))
                if is_fit and all(line.get(name) == value for name, value in fields.items()):
                    return line

    async def _next(self) -> Line:
        while True:
            for part in self._data.splitlines(keepends=True):
                self._data = self._data.removeprefix(part)
                if not part.endswith(b"\n"):
                    self._data = part
                    break
                if part.startswith(b"{"):
                    self.lines.append(json.loads(part))
                    return self.lines[-1]
            data = await self._stream.receive_some(65_536)
            assert data, self.lines
            self._data += data


@asynccontextmanager
async def traced(address: Address, client: str, **query: object) -> AsyncIterator[Reader]:
    stream = await send(address, head(f"GET /trace?{urlencode({'client': client, **query})}"))
    async with stream:
        with trio.fail_after(TEST_S):
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive_some(1)
        assert b"200" in data.splitlines()[0], data
        yield Reader(stream)


async def say(wire: Wire, *packets: Any) -> None:
    await wire.stream.send_all(b"".join(encode(packet, wire.version) for packet in packets))


async def test_life_of_a_client_that_connects_during_the_trace() -> None:
    async with watched() as (running, address), traced(address, "car-*") as reader:
        other = await connect(running, "van")
        wire = await open_wire(running)
        properties = Properties(user_properties=(("key", "s3cret-property"),))
        connect_packet = Connect(
            "car-1", username="ann", password=b"s3cret-password", properties=properties
        )
        await wire.send(connect_packet)
        await wire.expect(Connack)
        await wire.subscribe("t/#", 1)
        await wire.send(Publish("t/1", b"s3cret-payload", 1, packet_id=7))
        await wire.expect(Publish)
        await wire.expect(Puback)
        await wire.send(Disconnect())
        line = await reader.until("ended")
        await wire.close()
        await other.close()
    assert (line["reason"], line["by"]) == ("normal_disconnection", "client")
    seen = [(line["event"], line.get("packet", "")) for line in reader.lines]
    assert seen == [
        ("received", "CONNECT"),
        ("accepted", ""),
        ("sent", "CONNACK"),
        ("received", "SUBSCRIBE"),
        ("sent", "SUBACK"),
        ("received", "PUBLISH"),
        *sorted([("sent", "PUBLISH"), ("sent", "PUBACK")], key=seen.index),
        ("received", "DISCONNECT"),
        ("ended", ""),
    ]
    published = next(line for line in reader.lines if line.get("packet") == "PUBLISH")
    assert (published["topic"], published["qos"], published["packet_id"]) == ("t/1", 1, 7)
    assert all(line["client_id"] == "car-1" for line in reader.lines)
    assert "s3cret" not in json.dumps(reader.lines)


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_payload_is_shown_on_request_up_to_its_limit(version: int) -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c", version)
        async with traced(address, "c", payload=4) as reader:
            await reader.until("traced")
            await wire.publish("t", "aé€xyz".encode())
            line = await reader.until("received", packet="PUBLISH")
        await wire.close()
    assert (line["payload"], line["bytes"]) == ("aé\\xe2", 14 + (version == MQTT_5))


async def test_large_packet_is_one_line_and_the_next_ones_follow() -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c")
        async with traced(address, "c", payload=10) as reader:
            await reader.until("traced")
            await say(wire, Publish("large", b"\xe2\x82\xac" * 100_000), Publish("small", b"x"))
            large = await reader.until("received")
            small = await reader.until("received")
        await wire.close()
    assert (large["topic"], large["bytes"] > 300_000) == ("large", True)
    assert (small["topic"], small["payload"]) == ("small", "x")


async def test_topic_of_an_alias_is_shown() -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c")
        async with traced(address, "c") as reader:
            await reader.until("traced")
            alias = Properties(topic_alias=1)
            await wire.send(Publish("t", b"", properties=alias), Publish("", b"", properties=alias))
            topics = [(await reader.until("received"))["topic"] for _ in range(2)]
        await wire.close()
    assert topics == ["t", "t"]


async def test_packets_of_a_tls_client_are_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    network = {
        "listeners": [{"address": "mqtts://127.0.0.1:0"}],
        "cert": pair.cert,
        "key": pair.key,
    }
    doorways = open_doorways(NetworkSettings.model_validate(network))
    async with watched(listener=doorways) as (running, address):
        stream = await trio.open_tcp_stream(*running.address)
        context = authority.client_context()
        tls = trio.SSLStream(stream, context, server_hostname="127.0.0.1")
        wire = Wire(tls, MQTT_5)  # type: ignore[arg-type]
        await wire.send(Connect("c"))
        await wire.expect(Connack)
        async with traced(address, "c") as reader:
            await reader.until("traced")
            await wire.ping()
            await reader.until("received", packet="PINGREQ")
            await reader.until("sent", packet="PINGRESP")
        await wire.ping()
        await stream.aclose()


async def test_trace_of_a_client_that_does_not_read_begins_with_a_whole_packet() -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c")
        await wire.subscribe("t", 0)
        publisher = await connect(running, "p")
        session = running.node.registry.sessions["c"]
        sent = 0
        while not (session.outbound and session.outbound.outbox.blocked):
            await publisher.publish("t", b"x" * 100_000)
            await publisher.ping()
            sent += 1
        async with traced(address, "c") as reader:
            await reader.until("traced")
            await wire.send(Pingreq())
            while isinstance(await wire.receive(), Publish):
                pass
            await wire.ping()
            await publisher.publish("t", b"y")
            line = await reader.until("sent", packet="PUBLISH", bytes=7)
        await wire.close()
        await publisher.close()
    assert line["topic"] == "t"
    assert not any("error" in line for line in reader.lines)


async def test_pause_of_a_client_is_shown_with_its_reason() -> None:
    store = SlowStore()
    settings = {"flow": {"window_max": 2, **CALM}}
    async with watched(settings, store=store) as (running, address):
        offline = await connect(running, "offline", durable=True)
        await offline.subscribe("t", 1)
        await offline.close()
        wire = await connect(running, "c")
        async with traced(address, "c") as reader:
            await reader.until("traced")
            store.open.clear()
            await wire.send(*publishes("t", 5))
            paused = await reader.until("paused")
            store.open.set()
            resumed = await reader.until("resumed")
        await wire.close()
    assert paused["reasons"] == ["window"]
    assert "2 of 2 packets in process" in paused["why"]
    assert resumed["paused_s"] > 0


async def test_client_that_acknowledges_nothing_is_shown() -> None:
    async with watched({"session": {"queue_messages_max": 3}}) as (running, address):
        wire = await connect(running, "c", receive_maximum=1)
        await wire.subscribe("t", 1)
        publisher = await connect(running, "p")
        async with traced(address, "c") as reader:
            await reader.until("traced")
            await publisher.send(*publishes("t", 5))
            drops = await reader.until("drops")
            stopped = await reader.until("sends nothing")
        await wire.close()
        await publisher.close()
    assert stopped["reason"] == "receive_maximum"
    assert "1 of the 1 messages that may be in flight" in stopped["why"]
    assert drops["reasons"] == ["queue_messages"]


async def test_rejected_connect_and_protocol_error_are_shown() -> None:
    async with watched() as (running, address), traced(address, "c*") as reader:
        wire = await open_wire(running)
        await wire.send(Connect("c1", properties=Properties(authentication_method="unknown")))
        await wire.expect(Connack)
        await wire.close()
        line = await reader.until("CONNECT rejected")
        assert (line["client_id"], line["code"]) == ("c1", "0x8C bad_authentication_method")
        wire = await connect(running, "c2")
        await wire.stream.send_all(b"\xf7\x00")
        line = await reader.until("protocol error")
        await wire.close()
        assert (line["client_id"], line["code"][:4]) == ("c2", "0x81")


async def test_trace_ends_after_its_time_with_counts() -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c")
        data = await read_all(await send(address, head("GET /trace?client=c&for_s=1")))
        await wire.ping()
        await wire.close()
    code, headers, body = parts(data)
    assert (code, headers["content-type"]) == (200, web.LINES_TYPE)
    lines = [json.loads(line) for line in body.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines] == ["traced", "trace ended"]
    assert (lines[1]["dropped_lines"], lines[1]["untraced_connections"]) == (0, 0)


async def test_nothing_stays_when_the_last_trace_has_ended() -> None:
    async with watched() as (running, address):
        wire = await connect(running, "c")
        link = next(iter(running.reactor.sockets.links.values()))
        lives, before = running.node.counters.lives, link.sock
        callbacks = lives.on_connected, lives.on_ended, running.node.on_turned_away
        async with traced(address, "c") as first:
            await first.until("traced")
            async with traced(address, "*") as second:
                await second.until("traced")
                assert link.sock is not before
            await wire.ping()
            await first.until("received", packet="PINGREQ")
        await until(lambda: link.sock is before)
        assert (lives.on_connected, lives.on_ended, running.node.on_turned_away) == callbacks
        await wire.ping()
        await wire.close()


@pytest.mark.parametrize(
    "part", ["tap.packet_of", "tracing.fields_of", "tracing.code_text", "decisions.pauses_of"]
)
async def test_error_in_a_trace_ends_the_trace_and_no_client(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    async with watched() as (running, address):
        wire = await connect(running, "c")
        async with traced(address, "*") as reader:
            await reader.until("traced")
            monkeypatch.setattr(f"flowguard.ops.trace.{part}", fail)
            await wire.ping()
            other = await connect(running, "other")
            rejected = await open_wire(running)
            await rejected.send(Connect("x", properties=Properties(authentication_method="?")))
            assert (await rejected.expect(Connack)).reason_code == 0x8C
            line = await reader.until("trace ended")
        for each in (wire, other):
            await each.ping()
        for each in (wire, other, rejected):
            await each.close()
    assert "log" in line["error"]


@pytest.mark.parametrize(
    "query", ["", "client=", "client=c&payload=-1", "client=c&for_s=0", "client=c&other=1"]
)
async def test_wrong_parameters_are_400(query: str) -> None:
    async with watched() as (_, address):
        code, _ = await request(address, f"GET /trace?{query}")
    assert code == 400


async def test_further_traces_and_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(web, "TRACES_MAX", 1)
    async with watched() as (running, address):
        wires = [await connect(running, name) for name in ("c1", "c2")]
        async with traced(address, "*", for_s=1) as reader:
            code, _ = await request(address, "GET /trace?client=c1")
            line = await reader.until("trace ended")
        for wire in wires:
            await wire.close()
    assert (code, line["untraced_connections"]) == (503, 1)


async def test_page_of_another_origin_gets_no_trace() -> None:
    async with watched() as (_, address):
        code, _ = await request(address, "GET /trace?client=c", "Origin: http://evil.example")
        forwarded, body = await request(address, "GET /trace?client=c", "X-Forwarded-For: 1.2.3.4")
    assert (code, forwarded) == (403, 403)
    assert "token" in body


def test_lines_are_bounded_and_the_number_of_dropped_ones_is_a_line() -> None:
    trace = TraceLines("*", 0)
    for number in range(LINES_MAX + 5):
        if trace.has_room():
            trace.put(number, "received", "c", {})
    *lines, gap = map(json.loads, trace.take(7.0).splitlines())
    assert [each["event"] for each in lines] == ["received"] * LINES_MAX
    assert (gap["event"], gap["lines"], trace.dropped) == ("dropped lines", 5, 5)
    assert trace.has_room()
    trace.put(0.0, "received", "c", {})
    (line,) = map(json.loads, trace.take(8.0).splitlines())
    assert line["event"] == "received"
