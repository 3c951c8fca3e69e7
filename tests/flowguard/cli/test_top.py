"""`flowguard top`: what a frame says, and how the command ends."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from flowguard.cli.remote.top_screen import StatusHistory, _least, frame
from flowguard.ops.common.measurement import MemoryStatus
from flowguard.ops.pressure import Decision
from flowguard.ops.status import Status, status_of
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.stage import Stage

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()][AB]")


def calm() -> Status:
    stage = Stage()
    memory = MemoryStatus(held_bytes=2**19, resident_bytes=2**20, limit_bytes=2**30)
    return status_of(stage.node, stage.now_s, memory)


def decision(at_s: float, window: float) -> Decision:
    return Decision(
        at_s=at_s,
        window=window,
        pressure=2.0,
        why="cut",
        signal=None,
        value=None,
        threshold=None,
        unit=None,
    )


def shown(history: StatusHistory, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(frame(history, width))
    return capture.get().splitlines()


def row(lines: list[str], label: str) -> str:
    (line,) = [line for line in lines if line.startswith(label)]
    return line


def test_a_full_disk_is_said_before_what_the_law_says() -> None:
    history, status = StatusHistory("url"), calm()
    status["store"]["read_only"] = True
    status["why"] = "held"
    history.add(status)
    said = "the store is full: durable messages and new durable sessions are rejected; held"
    assert row(shown(history), "why").removeprefix("why").strip() == said


def test_the_cause_is_marked_where_there_is_pressure() -> None:
    history, status = StatusHistory("url"), calm()
    status["pressure"]["value"] = status["pressure"]["signals"]["store"] = 3.0
    status["pressure"]["cause"] = "store"
    status["why"] = "cut to 58 %: store at 3.0 of its objective"
    history.add(status)
    lines = shown(history)
    assert "◀ cause" in row(lines, "store")
    assert "3.00" in row(lines, "store")
    assert "◀" not in row(lines, "loop")
    assert row(lines, "store").count("█") > row(lines, "loop").count("█")
    assert "cut to 58 %" in row(lines, "why")


def test_memory_is_what_is_held_as_its_signal_has_it() -> None:
    history = StatusHistory("url")
    history.add(calm())
    _, held = [line for line in shown(history) if line.startswith("memory")]
    assert "512 KiB of 1.0 GiB" in held


def test_no_signal_is_the_cause_of_calm() -> None:
    history, status = StatusHistory("url"), calm()
    status["pressure"]["value"] = status["pressure"]["signals"]["memory"] = 0.01
    status["pressure"]["cause"] = "memory"
    history.add(status)
    assert not any("◀" in line for line in shown(history))


def test_a_shadow_has_a_line_where_there_is_one() -> None:
    history, status = StatusHistory("url"), calm()
    history.add(status)
    assert not any(line.startswith("shadow") for line in shown(history))
    stage = Stage({"flow": {"shadow_policy": "static-10"}})
    stage.advance(0.1)
    history.add(status_of(stage.node, stage.now_s))
    words = row(shown(history), "shadow").split()
    assert " ".join(words) == "shadow 10 by static-10, 0 more paused"


def test_rates_are_what_happened_between_two_statuses() -> None:
    history, before, now = StatusHistory("url"), calm(), calm()
    now["now_s"] = before["now_s"] + 2
    before["traffic"]["publish_received"], now["traffic"]["publish_received"] = 1_000, 4_000
    now["gate"]["refused"] = {"gate_deadline": 10}
    now["dropped"] = {"queue_messages": 6}
    history.add(before)
    history.add(now)
    lines = shown(history)
    assert re.search(r"4,000 +1,500/s", row(lines, "messages in"))
    assert re.search(r"10 +5/s +gate_deadline", row(lines, "rejected"))
    assert re.search(r"6 +3/s +queue_messages", row(lines, "dropped"))


def test_a_broker_that_has_started_anew_has_no_rates_yet() -> None:
    history, before, now = StatusHistory("url"), calm(), calm()
    before["traffic"]["publish_received"] = 1_000
    now["started_s"] += 5
    now["now_s"] += 5
    history.add(before)
    history.add(now)
    assert "/s" not in row(shown(history), "messages in")
    assert len(history.windows) == 1


def test_a_cut_between_two_statuses_is_seen() -> None:
    history, before, now = StatusHistory("url"), calm(), calm()
    now["now_s"] = before["now_s"] + 1
    history.add(before)
    cut = (before["now_s"] + 0.4, 2.0), (before["now_s"] + 0.6, 100.0)
    now["decisions"] = [decision(*at) for at in cut]
    history.add(now)
    end_s = now["now_s"]
    assert _least(history.windows, end_s - 1, end_s) == 2.0
    assert _least(history.windows, end_s - 0.3, end_s) == 100.0
    assert _least(history.windows, end_s - 30, end_s - 20) is None


def test_the_past_is_a_minute() -> None:
    history = StatusHistory("url")
    for second in range(200):
        status = calm()
        status["now_s"] += second
        history.add(status)
    assert len(history.windows) <= 62


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_storm_fits_the_terminal(width: int) -> None:
    history, status = StatusHistory("http://127.0.0.1:9883"), calm()
    status["gate"]["rung"] = "close"
    status["gate"]["refused"] = {f"gate_reason_{number}": number for number in range(9)}
    status["dropped"] = {f"reason_{number}": 10**9 for number in range(9)}
    status["clients"]["connected"] = status["clients"]["sessions"] = 1_000_000
    status["why"] = "a long story " * 3
    history.add(status)
    lines = shown(history, width)
    assert len(lines) <= 30
    assert all(len(line) <= width for line in lines)


def test_trouble_is_shown_above_the_last_known_state() -> None:
    history = StatusHistory("url")
    history.add(calm())
    history.trouble = "url: Connection refused"
    assert "no answer" in shown(history)[0]
    assert "Connection refused" in shown(history)[0]


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("top")) as running:
        yield running


@pytest.fixture(scope="module")
def address(broker: Broker) -> str:
    return http_address(broker)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
def test_one_frame_of_a_real_broker(address: str, form: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        code, stdout, stderr = run("top", "--once", form.format(address))
        assert code == 0, stderr
        lines = stdout.splitlines()
        assert "0 connected" in row(lines, "clients")
        window = row(lines, "window")
        assert "of 100 packets" in window
        if "100 of 100 packets" in window:
            return
        assert time.monotonic() < deadline_s  # A broker that was paused opens it again.


@pytest.mark.slow
def test_ctrl_c_ends_it_with_0(address: str) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flowguard", "top", address],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    )
    os.close(child)
    seen = ""
    interrupted = False
    try:
        while data := os.read(parent, 65_536):
            seen += data.decode(errors="replace")
            if not interrupted and "dropped" in seen:
                process.send_signal(signal.SIGINT)
                interrupted = True
    except OSError:
        pass  # Linux: the child has closed its end.
    finally:
        os.close(parent)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert code == 0
    assert "ended by Ctrl-C" in ESCAPES.sub("", seen)
    assert "Traceback" not in seen


@pytest.mark.slow
def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    code, stdout, stderr = run("top", address)
    assert code == 1
    assert stdout == ""
    assert address in stderr
    assert "Connection refused" in stderr
    assert "flowguard top http://HOST:PORT" in stderr


@pytest.mark.slow
def test_a_name_that_the_broker_does_not_know_as_its_own(address: str) -> None:
    """`127.1` leads there, and is no address as it stands."""
    url = f"http://127.1:{address.rpartition(':')[2]}"
    code, _, stderr = run("top", url, "--once")
    assert code == 1
    assert f"flowguard top: {url}: 127.1:" in stderr
    assert "http.names" in stderr


@pytest.mark.slow
def test_the_mqtt_port_is_no_http_port(broker: Broker) -> None:
    code, _, stderr = run("top", f"{broker.host}:{broker.port}")
    assert code == 1
    assert "no answer from" in stderr
