"""The control of `python -m benchmarks.tls_storm` is a broker that serves."""

import socket
import sys
from pathlib import Path

import pytest

from flowguard.codec.encoder import encode
from tests.interop.broker import PATIENCE_S, running_broker
from tests.support.authority import Authority
from tests.support.real import connect_packet

pytestmark = pytest.mark.slow


def test_the_broker_without_the_gate_for_handshakes_serves_who_comes_by_tls(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    words = ("--listen", "mqtts://127.0.0.1:0", "--cert", str(pair.cert), "--key", str(pair.key))
    program = (sys.executable, "-m", "benchmarks.ungated")
    with running_broker(tmp_path / "broker", *words, program=program) as broker:
        plain = socket.create_connection((broker.host, broker.port), PATIENCE_S)
        context = authority.client_context()
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(encode(connect_packet("c"), 5))
            assert client.recv(1) == b"\x20"
