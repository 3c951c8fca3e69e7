"""`flowguard serve` as a process, over plain sockets if no other program is needed."""

import fcntl
import json
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import termios
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from benchmarks.brokers import free_port
from flowguard.cli.serve_options import HTTP_PORT
from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Suback,
    Subscribe,
)
from flowguard.types import (
    MQTT_311,
    Properties,
    Publish,
    ReasonCode,
    SubscriptionOptions,
)
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import PATIENCE_S, Broker, address_in, running_broker, start
from tests.support.caller import Caller
from tests.support.commands import flowguard


def refused(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and complaint of a broker that must not start; not at the port that all have."""
    if "--listen" not in arguments:
        arguments = ("--listen", "127.0.0.1:0", *arguments)
    code, stdout, stderr = flowguard("serve", *arguments, environment=environment)
    assert stdout == ""
    assert "Traceback" not in stderr
    return code, stderr


@pytest.mark.slow
def test_a_taken_port_is_named_and_so_is_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, complaint = refused("--listen", address, "--data", str(tmp_path / "data"))
    assert code == 1
    assert address in complaint
    assert "Address already in use" in complaint
    assert "--listen 127.0.0.1:0" in complaint
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_an_address_of_another_machine(tmp_path: Path) -> None:
    address = "203.0.113.1:1883"  # RFC 5737: an unused address.
    code, complaint = refused(
        *("--listen", address, "--data", str(tmp_path / "data")),
        *("--allow-plaintext", "--allow-anonymous"),
    )
    assert code == 1
    assert address in complaint


@pytest.mark.slow
@pytest.mark.parametrize("address", ["1883", "127.0.0.1:65536", "[/red]"])
def test_a_bad_address(tmp_path: Path, address: str) -> None:
    code, complaint = refused("--listen", address, "--data", str(tmp_path / "data"))
    assert code == 2
    assert f"{address}: expected HOST:PORT" in complaint


@pytest.mark.slow
def test_an_unknown_key_is_named_with_its_path(tmp_path: Path) -> None:
    config = tmp_path / "flowguard.toml"
    config.write_text("[flow]\nwindow_maximum = 5\n")
    code, complaint = refused("--config", str(config), "--data", str(tmp_path / "data"))
    assert code == 2
    assert "flow.window_maximum: unknown setting; did you mean flow.window_max" in complaint


@pytest.mark.slow
def test_a_bad_variable_is_named_with_its_path(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_FLOW__WINDOW_MAX": "many"}
    code, complaint = refused("--data", str(tmp_path / "data"), environment=environment)
    assert code == 2
    assert "flow.window_max" in complaint


@pytest.mark.slow
def test_an_unknown_policy_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    code, complaint = refused("--policy", "magic", "--data", str(tmp_path / "data"))
    assert code == 2
    assert "flow.policy" in complaint
    assert "level-map" in complaint


@pytest.mark.slow
def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    code, complaint = refused("--store", "drawer", "--data", str(tmp_path / "data"))
    assert code == 2
    assert "store.kind" in complaint
    assert "rocks" in complaint


@pytest.mark.slow
def test_data_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("")
    code, complaint = refused("--listen", "127.0.0.1:0", "--data", str(file))
    assert code == 1
    assert str(file) in complaint


@pytest.mark.slow
def test_file_and_variables_reach_the_broker(tmp_path: Path) -> None:
    """The variable wins over the file, the file over the default; CONNACK shows both."""
    config = tmp_path / "flowguard.toml"
    config.write_text("[session]\nreceive_maximum = 7\ntopic_alias_maximum = 3\n")
    environment = {"FLOWGUARD_SESSION__RECEIVE_MAXIMUM": "5", "FLOWGUARD_FLOW__WINDOW_MAX": "5"}
    with (
        running_broker(
            tmp_path / "data", "--config", str(config), environment=environment
        ) as broker,
        Caller(broker) as caller,
    ):
        connack = caller.read()
        assert isinstance(connack, Connack)
        assert connack.properties.receive_maximum == 5
        assert connack.properties.topic_alias_maximum == 3


@pytest.mark.slow
def test_ipv6(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    with (
        running_broker(tmp_path, "--listen", "[::1]:0") as broker,
        Caller(broker) as caller,
    ):
        assert broker.host == "::1"
        assert isinstance(caller.read(), Connack)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_says_goodbye_and_ends_with_0(tmp_path: Path, number: signal.Signals) -> None:
    with (
        running_broker(tmp_path) as broker,
        Caller(broker) as caller_5,
        Caller(broker, MQTT_311) as caller_4,
    ):
        assert isinstance(caller_5.read(), Connack)
        assert isinstance(caller_4.read(), Connack)
        broker.process.send_signal(number)
        goodbye = caller_5.read()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert caller_5.read() is None
        assert caller_4.read() is None
        assert broker.process.wait(PATIENCE_S) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port), PATIENCE_S)


@pytest.mark.slow
def test_a_hang_up_that_no_terminal_is_behind_ends_nothing(tmp_path: Path) -> None:
    """SIGHUP makes a daemon read its files again; clients do not notice."""
    with running_broker(tmp_path) as broker, Caller(broker) as caller:
        assert isinstance(caller.read(), Connack)
        for _ in range(2):
            broker.process.send_signal(signal.SIGHUP)
            caller.send(Pingreq())
            assert isinstance(caller.read(), Pingresp)
        while "reloaded certificates" not in broker.log.read_text():
            caller.send(Pingreq())
            assert isinstance(caller.read(), Pingresp)
        assert broker.terminate() == 0


@pytest.mark.slow
def test_the_end_of_its_terminal_is_its_end(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "flowguard", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "data")],
        stdin=child,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0),
    ) as process:
        try:
            os.close(child)
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"listening on ")
            os.close(parent)  # The kernel sends SIGHUP to all processes of this terminal.
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_http_is_announced_on_a_free_port_beside_a_free_port(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        address = http_address(broker)
        with urllib.request.urlopen(f"http://{address}/health", timeout=PATIENCE_S) as answer:
            assert answer.read() == b"alive\n"


@pytest.mark.slow
def test_http_can_be_switched_off(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--http", "none") as broker:
        assert broker.terminate() == 0
        assert broker.process.stdout is not None
        assert broker.process.stdout.read() == ""


@pytest.mark.slow
def test_a_taken_http_port_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, complaint = refused(
            *("--listen", "127.0.0.1:0", "--http", address, "--data", str(tmp_path / "data"))
        )
    assert code == 1
    assert f"cannot serve HTTP on {address}: Address already in use" in complaint
    assert "--http 127.0.0.1:0" in complaint
    assert "--http none" in complaint


@pytest.mark.slow
def test_a_taken_default_http_port_is_a_warning(tmp_path: Path) -> None:
    port = free_port()
    try:
        taken = socket.create_server(("127.0.0.1", HTTP_PORT))
    except OSError:
        taken = socket.socket()  # Another process has taken it: as good.
    with (
        taken,
        running_broker(tmp_path, "--listen", f"127.0.0.1:{port}") as broker,
        Caller(broker) as caller,
    ):
        assert isinstance(caller.read(), Connack)
        (warning,) = [line for line in broker.log.read_text().splitlines() if "HTTP" in line]
        assert "--http 127.0.0.1:0" in warning
        assert broker.terminate() == 0
        assert broker.process.stdout is not None
        assert broker.process.stdout.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("address", ["9883", "nowhere"])
def test_a_bad_http_address(tmp_path: Path, address: str) -> None:
    code, complaint = refused("--http", address, "--data", str(tmp_path / "data"))
    assert code == 2
    assert f"{address}: expected HOST:PORT" in complaint


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """One client reads nothing, so the broker would wait for it, for ten minutes."""
    payload = bytes(500_000)
    with (
        running_broker(
            tmp_path,
            environment={"FLOWGUARD_NODE__DRAIN_S": "600"},
            exit_code=128 + signal.SIGTERM,
        ) as broker,
        Caller(broker, client_id="deaf") as deaf,
        Caller(broker) as caller,
    ):
        deaf.send(Subscribe(1, (("#", SubscriptionOptions(qos=1)),)))
        assert isinstance(deaf.read(), Connack)
        assert isinstance(deaf.read(), Suback)
        assert isinstance(caller.read(), Connack)
        for number in range(1, 31):  # More than the sockets on both sides hold.
            caller.send(Publish("t", payload, qos=1, packet_id=number))
            assert isinstance(caller.read(), Puback)
        broker.process.send_signal(signal.SIGTERM)
        assert isinstance(caller.read(), Disconnect)
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_a_log_that_cannot_be_written_costs_nobody_an_answer(tmp_path: Path) -> None:
    """The disk of the log is full: peers are still rejected properly, each with a log line."""
    with open("/dev/full", "w") as full:
        process = start("serve", "--listen", "127.0.0.1:0", "--store", "memory", stderr=full)
    try:
        assert process.stdout is not None
        _, port = address_in(process.stdout.readline())
        broker = Broker(process, "127.0.0.1", port, tmp_path)
        for _ in range(3):
            with socket.create_connection((broker.host, broker.port), PATIENCE_S) as stranger:
                stranger.sendall(b"\x10\x0c\0\4MQTT\x09\2\0\0\0\0")
                assert stranger.recv(1) == b"\x20"
        with Caller(broker) as caller:
            assert isinstance(caller.read(), Connack)
        assert broker.terminate() == 0
    finally:
        process.kill()
        process.communicate()


# --- file descriptors ------------------------------------------------------------------------


def limited(files: int, *arguments: str) -> "subprocess.Popen[str]":
    """Start `flowguard serve` with a limit on open files."""
    return subprocess.Popen(
        [sys.executable, "-m", "flowguard", "serve", "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files)),
    )


@pytest.mark.slow
def test_a_flood_of_bare_connections_takes_neither_the_store_nor_http_its_files(
    tmp_path: Path,
) -> None:
    """More than the process may open; then a durable client is served, and /status answers."""
    with limited(800, "--data", str(tmp_path / "data")) as process:
        try:
            assert process.stdout is not None
            _, port = address_in(process.stdout.readline())
            http = process.stdout.readline().removeprefix("http on ").strip()
            flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(1_000)]
            rests = 0
            while not rests:
                with urllib.request.urlopen(f"{http}status", timeout=PATIENCE_S) as answer:
                    door = json.load(answer)["listener"]
                rests = door["rests"]["descriptors"]
            assert door["connections"]["limit"] < 800
            broker = Broker(process, "127.0.0.1", port, tmp_path)
            durable = Properties(session_expiry_interval=3_600)
            with Caller(broker, client_id="c", clean_start=False, properties=durable) as caller:
                assert isinstance(caller.read(), Connack)
                caller.send(Subscribe(1, (("t", SubscriptionOptions(qos=1)),)))
                assert isinstance(caller.read(), Suback)
            for sock in flood:
                sock.close()
            assert broker.terminate() == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_a_limit_too_small_for_any_client_is_one_clear_line(tmp_path: Path) -> None:
    with limited(256, "--data", str(tmp_path / "data")) as process:
        stdout, complaint = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout) == (2, "")
    assert "this process may open 256 files" in complaint
    assert "store.open_files_max" in complaint
    assert "Traceback" not in complaint
    assert not (tmp_path / "data").exists()


COUNTED = """
import gc, sys

def freeze(freeze=gc.freeze):
    freeze()
    sys.stderr.write(f"frozen: {gc.get_freeze_count()}\\n")

gc.freeze = freeze
from flowguard.__main__ import main
main()
"""


@pytest.mark.slow
def test_the_collector_never_looks_through_what_was_there_before_the_first_client(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path, program=(sys.executable, "-c", COUNTED)) as broker:
        (line,) = (line for line in broker.log.read_text().splitlines() if "frozen: " in line)
    assert int(line.removeprefix("frozen: ")) > 10_000
