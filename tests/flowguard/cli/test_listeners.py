"""Where `flowguard serve` listens, as people say it."""

import json
import socket
import ssl
from pathlib import Path

import pytest

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect
from flowguard.types import MQTT_5
from tests.flowguard.cli.test_serve import refused
from tests.interop.broker import ANNOUNCEMENT, PATIENCE_S, Broker, running_broker
from tests.support.authority import Authority

pytestmark = pytest.mark.slow


def next_line(broker: Broker) -> str:
    assert broker.process.stdout is not None
    return broker.process.stdout.readline().strip().removeprefix(ANNOUNCEMENT)


def greet(sock: socket.socket, client_id: str) -> None:
    """CONNECT and CONNACK, then the end."""
    decoder = PacketDecoder(1_000, MQTT_5, "client")
    with sock:
        sock.sendall(encode(Connect(client_id, MQTT_5), MQTT_5))
        while (packet := decoder.next()) is None:
            data = sock.recv(1_000)
            assert data
            decoder.feed(data)
        assert isinstance(packet, Connack)
        assert packet.reason_code == 0


def test_each_listener_is_printed_with_its_scheme_and_serves(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    path = tmp_path / "mqtt.sock"
    with running_broker(
        tmp_path / "broker",
        *("--listen", "127.0.0.1:0", "--listen", "mqtts://127.0.0.1:0", "--listen", f"unix:{path}"),
        *("--cert", str(pair.cert), "--key", str(pair.key)),
    ) as broker:
        greet(socket.create_connection((broker.host, broker.port), PATIENCE_S), "plain")
        address, scheme = next_line(broker).split()
        assert scheme == "mqtts"
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), PATIENCE_S)
        context = authority.client_context()
        greet(context.wrap_socket(plain, server_hostname="127.0.0.1"), "secure")
        assert next_line(broker) == f"unix:{path} mqtt"
        local = socket.socket(socket.AF_UNIX)
        local.settimeout(PATIENCE_S)
        local.connect(str(path))
        greet(local, "local")
        assert broker.terminate() == 0
    assert not path.exists()


def test_the_socket_of_a_dead_broker_is_taken_over_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mqtt.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listen = ("--listen", "127.0.0.1:0", "--listen", f"unix:{path}")
    with running_broker(tmp_path / "first", *listen):
        code, complaint = refused(*listen, "--data", str(tmp_path / "second"))
        assert code == 1
        assert f"cannot listen on unix:{path}: Address already in use" in complaint
    path.write_text("somebody's file")
    code, _ = refused(*listen, "--data", str(tmp_path / "second"))
    assert code == 1
    assert path.read_text() == "somebody's file"


def test_listeners_of_the_file_have_certificates_and_limits_of_their_own(tmp_path: Path) -> None:
    inside, outside = Authority(tmp_path, "inside"), Authority(tmp_path, "outside")
    ours, theirs = inside.issue("127.0.0.1"), outside.issue("127.0.0.1")
    config = tmp_path / "flowguard.toml"
    config.write_text(
        "[network]\n"
        f"cert = {json.dumps(str(ours.cert))}\nkey = {json.dumps(str(ours.key))}\n"
        'listeners = ["mqtts://127.0.0.1:0", '
        '{address = "mqtts://127.0.0.1:0", connections_max = 5, '
        f"cert = {json.dumps(str(theirs.cert))}, key = {json.dumps(str(theirs.key))}}}]\n"
    )
    with running_broker(tmp_path / "broker", "--config", str(config), listen=False) as broker:
        for authority, port in (
            (inside, broker.port),
            (outside, int(next_line(broker).split()[0].rpartition(":")[2])),
        ):
            plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
            context = authority.client_context()
            greet(context.wrap_socket(plain, server_hostname="127.0.0.1"), "c")


def test_a_key_of_another_certificate_is_refused_before_anybody_listens(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("127.0.0.1"), authority.issue("127.0.0.1")
    code, said = refused(
        *("--listen", "mqtts://127.0.0.1:0", "--data", str(tmp_path / "data")),
        *("--cert", str(one.cert), "--key", str(other.key)),
    )
    assert code == 2
    assert str(other.key) in said
    assert "key values mismatch" in said


def test_a_client_that_speaks_no_tls_is_turned_away_by_its_listener(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    with (
        running_broker(
            tmp_path / "broker",
            *("--listen", "mqtts://127.0.0.1:0"),
            *("--cert", str(pair.cert), "--key", str(pair.key)),
        ) as broker,
        socket.create_connection((broker.host, broker.port), PATIENCE_S) as sock,
    ):
        sock.sendall(encode(Connect("plain", MQTT_5), MQTT_5))
        answer = sock.recv(100)
        assert answer[:1] in (b"", b"\x15")  # An alert, not MQTT.
        plain = socket.create_connection((broker.host, broker.port), PATIENCE_S)
        with plain, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
