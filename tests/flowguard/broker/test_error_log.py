"""A storm of errors, or of refused peers, is a few lines and a count."""

import socket
import ssl
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from flowguard.access.rules_toml import parse_toml
from flowguard.broker.logs.error_log import GATE_TEXTS, SHOWN_MAX, BoundedLog, PeerLog
from flowguard.broker.server import Running
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack, Disconnect, Suback, Subscribe
from flowguard.flow import Reason
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_5, MQTT_311, ReasonCode, SubscriptionOptions
from tests.support.authentication import SameVerdict
from tests.support.authority import Authority
from tests.support.real import broker, connect, connect_packet, open_wire, until
from tests.support.stage import Stage


def test_few_of_a_kind_are_shown_and_all_are_counted() -> None:
    errors = BoundedLog("connection failed", "error")
    with capture_logs() as lines:
        for number in range(1_000):
            errors.raised(KeyError("hook") if number % 4 else RuntimeError("bug"))
        errors.flush()
    *shown, counted = lines
    assert [line["event"] for line in shown] == ["connection failed"] * (2 * SHOWN_MAX)
    assert all("exc_info" in line for line in shown)
    assert counted["event"] == "connection failed, not shown"
    assert counted["KeyError"] + counted["RuntimeError"] == 1_000 - len(shown)
    assert counted.keys() == {"event", "log_level", "KeyError", "RuntimeError"}


def test_each_interval_shows_some_again() -> None:
    errors = BoundedLog("connection failed", "error")
    with capture_logs() as lines:
        for _ in range(3):
            for _ in range(SHOWN_MAX):
                errors.raised(ValueError())
            errors.flush()
    assert len(lines) == 3 * SHOWN_MAX


def test_an_interval_without_errors_says_nothing() -> None:
    errors = BoundedLog("connection failed", "error")
    with capture_logs() as lines:
        errors.flush()
    assert lines == []


# --- peers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_a_refused_peer_is_named_with_address_id_and_reason(version: int) -> None:
    hooks = Hooks(authenticator=SameVerdict(ReasonCode.NOT_AUTHORIZED))
    with capture_logs() as lines:
        async with broker(hooks=hooks) as running:
            wire = await open_wire(running, version)
            host, port = wire.stream.socket.getsockname()
            await wire.send(replace(connect_packet("intruder", version), username="mallory\n"))
            await wire.expect(Connack)
            await wire.close()
    (line,) = [line for line in lines if line["event"] == "authentication failed"]
    assert line["address"] == f"{host}:{port}"
    assert (line["client_id"], line["user_name"]) == ("intruder", "mallory?")
    assert line["reason"] == "0x87 not_authorized"


def test_each_rejection_by_the_gate_has_words() -> None:
    rejections = [reason for reason in Reason if reason.name.startswith("GATE_")]
    assert sorted(GATE_TEXTS) == sorted(rejections)


def test_each_reason_of_the_gate_is_shown_and_counted_apart() -> None:
    connection, rejected = Stage().connect("c").connection, PeerLog()
    with capture_logs() as lines:
        for why in (Reason.GATE_DEADLINE, Reason.GATE_WAIT):
            for _ in range(SHOWN_MAX + 2):
                rejected(connection, ReasonCode.SERVER_BUSY, why)
        for log in rejected.logs:
            log.flush()
    shown = [line["why"].partition(": ")[0] for line in lines[:-1]]
    assert shown == SHOWN_MAX * ["gate_deadline"] + SHOWN_MAX * ["gate_wait"]
    assert (lines[-1]["gate_deadline"], lines[-1]["gate_wait"]) == (2, 2)


async def test_a_peer_that_breaks_the_protocol_is_named_with_what_it_did() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wire = await connect(running, "broken")
            host, port = wire.stream.socket.getsockname()
            await wire.stream.send_all(b"\xc0\x01\x00")  # PINGREQ with a body.
            await wire.expect(Disconnect)
            await wire.close()
    (line,) = [line for line in lines if line["event"] == "peer rejected"]
    assert line["address"] == f"{host}:{port}"
    assert line["client_id"] == "broken"
    assert line["reason"] == "0x81 malformed_packet"
    assert line["why"]


async def test_what_is_no_mqtt_at_all_is_named_by_its_address() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wire = await open_wire(running)
            host, port = wire.stream.socket.getsockname()
            await wire.stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            assert await wire.receive() is None
            await wire.close()
    (line,) = [line for line in lines if line["event"] == "peer rejected"]
    assert line["address"] == f"{host}:{port}"
    assert line.keys().isdisjoint({"client_id", "user_name"})


async def test_a_crowd_of_refused_peers_is_a_few_lines_and_a_count() -> None:
    hooks = Hooks(authenticator=SameVerdict(ReasonCode.NOT_AUTHORIZED))
    with capture_logs() as lines:
        async with broker(hooks=hooks) as running:
            for number in range(20):
                wire = await open_wire(running)
                await wire.send(connect_packet(f"c{number}"))
                await wire.expect(Connack)
                await wire.close()
    assert (
        len([line for line in lines if line["event"] == "authentication failed"]) <= 2 * SHOWN_MAX
    )
    shown = sum(line["event"] == "authentication failed" for line in lines)
    counted = [line for line in lines if line["event"] == "authentication failed, not shown"]
    assert shown + sum(line["not_authorized"] for line in counted) == 20
    assert all(line.keys() == {"event", "log_level", "not_authorized"} for line in counted)


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [("\x1b[2J\u202ex", "?[2J?x"), ("a" * 65, "a" * 64 + "..."), ("", None)],
)
async def test_a_client_id_cannot_write_to_the_terminal_of_whoever_reads(
    client_id: str, shown: str | None
) -> None:
    hooks = Hooks(authenticator=SameVerdict(ReasonCode.BANNED))
    with capture_logs() as lines:
        async with broker(hooks=hooks) as running:
            wire = await open_wire(running)
            await wire.send(connect_packet(client_id))
            await wire.expect(Connack)
            await wire.close()
    (line,) = [line for line in lines if line["event"] == "authentication failed"]
    assert line.get("client_id") == shown


async def test_a_peer_without_client_id_is_named_by_the_assigned_one() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wire = await open_wire(running)
            await wire.send(connect_packet(""))
            assigned = (await wire.expect(Connack)).properties.assigned_client_identifier
            await wire.stream.send_all(b"\xc0\x01\x00")  # PINGREQ with a body.
            await wire.expect(Disconnect)
            await wire.close()
    (line,) = [line for line in lines if line["event"] == "peer rejected"]
    assert assigned
    assert line["client_id"] == assigned


# --- publishes and subscriptions -------------------------------------------------------------

RULES = """
[roles.all]
anonymous = true
publish = ["open/#"]
subscribe = ["open/#"]
"""


def rejections(lines: list[MutableMapping[str, Any]], event: str) -> list[list[str]]:
    """Return client id, topic and reason of each line with this event."""
    found = [line for line in lines if line["event"] == event]
    return [[line["client_id"], line["topic"], line["reason"]] for line in found]


async def test_log_names_client_and_topic_of_a_rejected_publish() -> None:
    settings = {"session": {"payload_bytes_max": 10}}
    rules = parse_toml(RULES, "acl.toml")
    with capture_logs() as lines:
        async with broker(settings, hooks=Hooks(rules=rules)) as running:
            wire = await connect(running, "p")
            await wire.publish("open/a", b"allowed")
            await wire.publish("secret/\x7f", b"denied")
            await wire.publish("$SYS/a", b"no client may")
            await wire.publish("open/b", bytes(11))
            await wire.ping()
            await wire.close()
    assert rejections(lines, "publish rejected") == [
        ["p", "secret/?", "not_authorized"],
        ["p", "$SYS/a", "topic_refused"],
        ["p", "open/b", "payload_too_large"],
    ]


async def test_log_names_client_and_filter_of_a_rejected_subscription() -> None:
    settings = {"session": {"topic_levels_max": 5}}
    rules = parse_toml(RULES, "acl.toml")
    with capture_logs() as lines:
        async with broker(settings, hooks=Hooks(rules=rules)) as running:
            wire = await connect(running, "s")
            for filter in ("open/a", "secret/#", "open/a/b/c/d/e"):
                await wire.send(Subscribe(1, ((filter, SubscriptionOptions(0)),)))
                await wire.expect(Suback)
            await wire.close()
    assert rejections(lines, "subscription rejected") == [
        ["s", "secret/#", "0x87 not_authorized"],
        ["s", "open/a/b/c/d/e", "0x8F topic_filter_invalid"],
    ]


async def test_many_rejected_publishes_are_a_few_lines_and_a_count() -> None:
    rules = parse_toml(RULES, "acl.toml")
    with capture_logs() as lines:
        async with broker(hooks=Hooks(rules=rules)) as running:
            wire = await connect(running, "p")
            for number in range(20):
                await wire.publish(f"secret/{number}", b"denied")
            await wire.ping()
            await wire.close()
    shown = len(rejections(lines, "publish rejected"))
    counted = [line for line in lines if line["event"] == "publish rejected, not shown"]
    assert shown <= 2 * SHOWN_MAX
    assert shown + sum(line["not_authorized"] for line in counted) == 20


# --- before MQTT -----------------------------------------------------------------------------


def tls_doorways(authority: Authority, **options: Any) -> list[Doorway]:
    pair = authority.issue("127.0.0.1")
    network = {"listeners": ["mqtts://127.0.0.1:0"], "cert": pair.cert, "key": pair.key, **options}
    return open_doorways(NetworkSettings.model_validate(network))


def told_of(lines: list[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in lines if line["event"] == "transport failed"]


async def say(running: Running, data: bytes) -> str:
    """Connect, send this, wait for the end, and return the address of the client."""
    stream = await trio.open_tcp_stream(*running.address)
    host, port = stream.socket.getsockname()
    await stream.send_all(data)
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    await stream.aclose()
    return f"{host}:{port}"


@pytest.mark.slow
async def test_a_client_without_certificate_is_named_with_address_and_reason(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    listener = tls_doorways(authority, client_ca=authority.cert)
    with capture_logs() as lines:
        async with broker(listener=listener) as running:
            plain = await trio.open_tcp_stream(*running.address)
            host, port = plain.socket.getsockname()
            context = authority.client_context()
            stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1")
            with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
                await stream.receive_some(1)
            await trio.aclose_forcefully(plain)
    (line,) = told_of(lines)
    assert line == {
        "event": "transport failed",
        "log_level": "warning",
        "address": f"{host}:{port}",
        "reason": "certificate",
        "why": "TLS: peer did not return a certificate",
    }


def shake_hands(address: tuple[str, int]) -> None:
    """Trust the authorities of this machine only."""
    context = ssl.create_default_context()
    with socket.create_connection(address) as plain:
        context.wrap_socket(plain, server_hostname="127.0.0.1").close()


@pytest.mark.slow
async def test_a_client_that_rejects_the_certificate_of_the_broker_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with capture_logs() as lines:
        async with broker(listener=tls_doorways(authority)) as running:
            with pytest.raises(ssl.SSLCertVerificationError):
                await trio.to_thread.run_sync(shake_hands, running.address)
            await until(lambda: running.node.connections_count == 0)
    (line,) = told_of(lines)
    assert line["reason"] == "alert"
    assert line["why"].endswith("alert unknown ca, sent by the client")


@pytest.mark.slow
async def test_a_crowd_that_speaks_no_tls_is_a_few_lines_and_a_count(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with broker(listener=tls_doorways(Authority(tmp_path))) as running:
            addresses = [await say(running, bytes(100)) for _ in range(10)]
    told = told_of(lines)
    assert {line["address"] for line in told} <= set(addresses)
    assert all("TLS" in line["why"] for line in told)
    counted = [line for line in lines if line["event"] == "transport failed, not shown"]
    assert len(told) <= 2 * SHOWN_MAX
    assert len(told) + sum(line["not_tls"] for line in counted) == 10


@pytest.mark.slow
async def test_a_health_check_that_says_nothing_is_not_told(tmp_path: Path) -> None:
    with capture_logs() as lines:
        async with broker(listener=tls_doorways(Authority(tmp_path))) as running:
            stream = await trio.open_tcp_stream(*running.address)
            await stream.aclose()
            await until(lambda: running.node.door.faults[LayerFault.LEFT] == 1)
    assert not told_of(lines)


async def test_what_is_no_websocket_is_named() -> None:
    listener = open_doorways(NetworkSettings.model_validate({"listeners": ["ws://127.0.0.1:0"]}))
    with capture_logs() as lines:
        async with broker(listener=listener) as running:
            address = await say(running, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    (line,) = told_of(lines)
    assert (line["address"], line["reason"]) == (address, "not_websocket")
    assert line["why"].startswith("WebSocket handshake")
