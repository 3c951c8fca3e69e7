"""`flowguard trace` against a real broker, and against workers."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from flowguard.cli.remote.trace import line_text
from flowguard.codec.packets import Connack, Puback
from flowguard.types import Publish
from tests.flowguard.cli.http_port import http_address, run
from tests.flowguard.workers.clients import Client, machine, names, tcp
from tests.interop.broker import running_broker
from tests.support.caller import Caller
from tests.support.commands import started
from tests.support.patience import HANG_S

TIME = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} ", re.MULTILINE)


@pytest.mark.slow
def test_trace_prints_packets_until_there_are_enough_lines(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        with started("trace", "car-*", "--count", "4", "--payload", "5", *url) as command:
            broker.wait_for_log("action=trace")
            with Caller(broker, client_id="car-1", username="ann", password=b"s3cret") as caller:
                assert isinstance(caller.read(), Connack)
                caller.send(Publish("t/1", b"hello, world", 1, packet_id=1))
                assert isinstance(caller.read(), Puback)
                command.process.join(HANG_S)
            assert command.process.exitcode == 0
            said, complaint = command.stdout, command.stderr
    lines = TIME.sub("", said).splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["car-1", "received", "CONNECT"],
        ["car-1", "accepted", "session_present=false"],
        ["car-1", "sent", "CONNACK"],
        ["car-1", "received", "PUBLISH"],
    ]
    assert "topic=t/1 qos=1 packet_id=1 payload=hello" in lines[3]
    assert complaint == "4 lines\n"
    assert ("s3cret" in said, "world" in said) == (False, False)


@pytest.mark.slow
def test_ctrl_c_ends_a_trace_and_a_time_does(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        with started("trace", "c", *url) as command:
            broker.wait_for_log("action=trace")
            assert command.process.pid is not None
            os.kill(command.process.pid, signal.SIGINT)
            command.process.join(HANG_S)
            assert (command.process.exitcode, command.stderr) == (0, "0 lines\n")
        code, said, _ = run("trace", "c", "--for", "1s", "--json", *url)
        assert (code, json.loads(said)["event"]) == (0, "trace ended")
        code, _, complaint = run("trace", "x" * 300, *url)
        assert (code, "1 to 256 characters" in complaint) == (2, True)
        code, _, complaint = run("trace", "x", "--url", f"{url[1]}/other")
        assert (code, "has no traces" in complaint) == (1, True)


@pytest.mark.slow
def test_trace_shows_clients_of_all_workers(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        url = ("--url", f"http://{running.http}")
        (first,), (second,) = names(0, 1), names(1, 1)
        clients = [Client(tcp(running.addresses[0]), name) for name in (first, second)]
        for client in clients:
            client.accepted()
        code, said, _ = run("trace", "client*", "--for", "1s", "--json", *url)
        lines = [json.loads(line) for line in said.splitlines()]
        assert code == 0
        found = {line["client_id"] for line in lines if line["event"] == "traced"}
        assert found == {first, second}
        assert sum(line["event"] == "trace ended" for line in lines) == 2
        one = f"http://{running.http}/workers/0"
        said = run("trace", "client*", "--for", "1s", "--json", "--url", one)[1]
        lines = [json.loads(line) for line in said.splitlines()]
        assert [line.get("client_id") for line in lines] == [first, None]
        for client in clients:
            client.close()


def test_line_has_no_control_characters() -> None:
    line = {"at_s": 0.0, "event": "received", "client_id": "a\x1b[31m", "codes": ["0x00", "0x87"]}
    assert TIME.sub("", line_text(line)) == "a\\x1b[31m received codes=0x00, 0x87"
