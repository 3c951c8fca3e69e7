"""A broker below systemd: ready when it listens, alive as long as its loop turns, and its unit."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowguard.cli.systemd import EXTENSION, STATUS_S, StandingBy, systemd_socket
from flowguard.codec.packets import Connack
from tests.interop.broker import PATIENCE_S, running_broker
from tests.support.caller import Caller

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "flowguard.service"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a supervisor that starts brokers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.settimeout(PATIENCE_S)
        opened.bind(str(tmp_path / "notify"))
        yield opened


def told(listener: socket.socket) -> list[str]:
    return listener.recv(4_096).decode().split("\n")


@pytest.mark.slow
def test_it_is_ready_when_it_listens_and_gives_signs_of_life_until_it_stops(
    tmp_path: Path, listener: socket.socket
) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with running_broker(tmp_path / "b", environment=environment) as broker:
        with socket.create_connection((broker.host, broker.port)):
            first = told(listener)
        assert first[:2] == ["READY=1", "WATCHDOG=1"]
        assert first[2].startswith("STATUS=calm: ")
        for _ in range(3):
            assert told(listener)[0] == "WATCHDOG=1"
        broker.process.send_signal(signal.SIGTERM)
        while told(listener) != ["STOPPING=1"]:
            pass
        broker.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_broker_that_drains_asks_for_more_time(tmp_path: Path, listener: socket.socket) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "200000",
        "FLOWGUARD_NODE__DRAIN_OVER_S": "3600",
    }
    killed = 128 + signal.SIGTERM
    with (
        running_broker(tmp_path / "b", environment=environment, exit_code=killed) as broker,
        Caller(broker) as caller,
    ):
        assert isinstance(caller.read(), Connack)
        broker.process.send_signal(signal.SIGTERM)
        while told(listener) != ["STOPPING=1"]:
            pass
        assert told(listener)[0] == EXTENSION
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait(PATIENCE_S)


@pytest.mark.slow
def test_who_is_not_there_any_more_does_not_end_the_broker(tmp_path: Path) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "nobody")}
    with running_broker(tmp_path / "b", environment=environment) as broker:
        broker.wait_for_log("systemd notification failed")
        assert broker.terminate() == 0


@pytest.mark.parametrize(
    ("environ", "interval_s"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, None),
        ({"NOTIFY_SOCKET": "/run/n"}, STATUS_S),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000"}, 15.0),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, STATUS_S),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, STATUS_S),
    ],
)
def test_who_is_told_how_often(environ: dict[str, str], interval_s: float | None) -> None:
    found = systemd_socket(environ, 7)
    if found is not None:
        found.close()
    assert (None if found is None else found.interval_s) == interval_s


def test_who_stands_by_asks_for_more_time_now_and_then(
    tmp_path: Path, listener: socket.socket
) -> None:
    now_s = 1_000.0
    heard = systemd_socket({"NOTIFY_SOCKET": str(tmp_path / "notify")}, 7)
    assert heard is not None
    stands_by = StandingBy(heard, lambda: now_s)
    for _ in range(20):
        stands_by("another has fg1")
        now_s += STATUS_S / 10
    heard.tell("the end")
    heard.close()
    asks = ["EXTEND_TIMEOUT_USEC=300000000", "STATUS=stands by: another has fg1"]
    assert [told(listener) for _ in range(3)] == [asks, asks, ["the end"]]


def test_who_is_not_asked_says_nothing() -> None:
    StandingBy(None, lambda: 0.0)("another has fg1")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here: apt-get install systemd")
    here = tmp_path / "flowguard.service"
    true = shutil.which("true")
    assert true is not None
    here.write_text(UNIT.read_text().replace("/opt/flowguard/bin/flowguard", true))
    done = subprocess.run(
        [program, "verify", "--man=no", str(here)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "SYSTEMD_LOG_TARGET": "console"},
        check=False,
    )
    assert "flowguard.service" not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("level", "events"), [("info", True), ("error", False)])
def test_a_log_for_programs_has_a_json_object_in_each_line(
    tmp_path: Path, level: str, events: bool
) -> None:
    environment = {"FLOWGUARD_LOG__FORMAT": "json", "FLOWGUARD_LOG__LEVEL": level}
    with running_broker(tmp_path, environment=environment) as broker:
        assert broker.terminate() == 0
    lines = [json.loads(line) for line in broker.log.read_text().splitlines()]
    assert bool(lines) is events
    for line in lines:
        assert {"event", "level", "timestamp"} <= set(line)
    if events:
        assert {line["event"] for line in lines} >= {"started", "drained"}
        assert {line["level"] for line in lines} <= {"info", "warning"}
