"""`flowguard publish` and `flowguard subscribe` at real brokers."""

import json
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.brokers import free_port
from flowguard.address import Address
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Pingreq, Suback
from flowguard.types import MQTT_5, Properties, Publish
from loadgen.command.one_client import ClientError, OneClient
from loadgen.storm.access import ClientAccess
from tests.interop.broker import Broker, running_broker
from tests.support.commands import Command, flowguard, started
from tests.support.patience import HANG_S


def address(broker: Broker) -> tuple[str, str]:
    return "--broker", f"mqtt://{broker.host}:{broker.port}"


def wait_for(command: Command, text: str) -> None:
    until_s = time.monotonic() + HANG_S
    while text not in command.stderr:
        assert time.monotonic() < until_s
        assert command.process.is_alive(), command.stderr
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_published_message_is_shown_by_subscribe(tmp_path: Path, workers: str) -> None:
    with running_broker(tmp_path, "--workers", workers) as broker:
        at = address(broker)
        words = ("subscribe", "t/+", "--qos", "2", "--count", "3", *at)
        with started(*words) as one, started(*words, "--json") as other:
            for command in (one, other):
                wait_for(command, "subscribed to t/+ with QoS 2")
            for qos in ("0", "1", "2"):
                code, said, _ = flowguard("publish", f"t/{qos}", f"text {qos}", "--qos", qos, *at)
                outcome = "sent; QoS 0 has no acknowledgement" if qos == "0" else "acknowledged"
                assert (code, said) == (0, f"published to t/{qos}: {outcome}\n")
            for command in (one, other):
                command.process.join(HANG_S)
                assert command.process.exitcode == 0
            assert one.stdout == "t/0 text 0\nt/1 text 1\nt/2 text 2\n"
            rows = [json.loads(line) for line in other.stdout.splitlines()]
            assert [(row["topic"], row["payload"], row["qos"]) for row in rows] == [
                (f"t/{qos}", f"text {qos}", qos) for qos in range(3)
            ]


@pytest.mark.slow
def test_retained_message_and_one_without_subscribers(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        at = address(broker)
        code, said, _ = flowguard("publish", "kept", "\x1b[31m", "--retain", *at)
        assert (code, said) == (
            0,
            "published to kept: acknowledged; no client has subscribed to it\n",
        )
        code, said, _ = flowguard("subscribe", "kept", "--count", "1", *at)
        assert (code, said) == (0, "kept (retained) \\x1b[31m\n")
        code, said, complaint = flowguard(
            "subscribe", "kept", "--count", "2", "--timeout", "0.2s", *at
        )
        assert (code, "1 of 2 messages after 0.2s" in complaint) == (1, True)
        assert flowguard("subscribe", "other", "--timeout", "0.1s", *at)[:2] == (0, "")


@pytest.mark.slow
def test_rejections_are_named(tmp_path: Path) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text('[roles.r]\nanonymous = true\npublish = ["may"]\n')
    with running_broker(tmp_path, "--acl", str(rules)) as broker:
        at = address(broker)
        assert flowguard("publish", "may", "x", *at)[0] == 0
        for qos in ("1", "2"):
            code, _, complaint = flowguard("publish", "may/not", "x", "--qos", qos, *at)
            assert (code, "rejects the message: 0x87 (not authorized)" in complaint) == (1, True)
        code, _, complaint = flowguard("subscribe", "t", *at)
        assert (code, "rejects the filter: 0x87 (not authorized)" in complaint) == (1, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("publish", "a/+", "x"), "is no topic of a message"),
        (("subscribe", "a/#/b"), "is no topic filter"),
        (("publish", "a", "x", "--broker", "unix:/run/mqtt.sock"), "not a Unix socket"),
        (("publish", "a", "x", "--password-file", "none"), "--password-file needs --user"),
    ],
)
def test_wrong_words_are_named(words: tuple[str, ...], why: str) -> None:
    code, _, complaint = flowguard(*words, environment={"COLUMNS": "200"})
    assert code in (1, 2)
    assert why in complaint


def test_no_broker_is_an_error() -> None:
    place = f"mqtt://127.0.0.1:{free_port()}"
    code, _, complaint = flowguard("publish", "a", "x", "--broker", place)
    assert (code, f"no broker listens on {place}" in complaint) == (1, True)


# --- what another broker may do ------------------------------------------------------------------


def answered(*packets: bytes) -> tuple[socket.socket, OneClient]:
    """A client, and the other side of its connection, which has sent this already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Address.parse(f"127.0.0.1:{listener.getsockname()[1]}")
        one = OneClient(place, ClientAccess())
        there, _ = listener.accept()
    there.sendall(b"".join(packets))
    return there, one


def test_message_before_suback_is_not_lost() -> None:
    early = Publish("t", b"early")
    packets = [encode(each, MQTT_5) for each in (Connack(), early, Suback(1, (0,)))]
    there, one = answered(*packets)
    with there, one:
        one.connect("c")
        assert one.answer(Suback).reason_codes == (0,)
        message = one.next(time.monotonic() + HANG_S)
        assert isinstance(message, Publish)
        assert message.payload == b"early"


def test_silent_client_sends_pings() -> None:
    connack = Connack(properties=Properties(server_keep_alive=1))
    there, one = answered(encode(connack, MQTT_5))
    with there, one:
        one.connect("c")
        there.setblocking(False)
        sent, until_s = b"", time.monotonic() + HANG_S
        while not sent.endswith(encode(Pingreq(), MQTT_5)):  # Messages come all the time.
            assert time.monotonic() < until_s
            there.sendall(encode(Publish("t", b"often"), MQTT_5))
            assert isinstance(one.next(until_s), Publish)
            with suppress(BlockingIOError):
                sent += there.recv(1_000)


@pytest.mark.parametrize(
    ("packets", "why"),
    [
        ([Connack(reason_code=0x89)], r"rejects the client: 0x89 \(server busy\)"),
        ([Suback(1, (0,))], "expected CONNACK from the broker, but got SUBACK"),
    ],
)
def test_broker_that_does_not_accept_is_named(packets: list[Connack | Suback], why: str) -> None:
    there, one = answered(*[encode(packet, MQTT_5) for packet in packets])
    with there, one, pytest.raises(ClientError, match=why):
        one.connect("c")


def test_service_that_is_no_broker_is_named() -> None:
    there, one = answered(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with there, one, pytest.raises(ClientError, match="does not speak MQTT 5"):
        one.connect("c")
