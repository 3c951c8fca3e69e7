"""A real broker records real clients; what goes wrong there is none of the clients' business."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
import structlog
import trio
from typer.testing import CliRunner

from flowguard.broker.server import Running, unix_clock
from flowguard.cli import app
from flowguard.node.connect.attempts import CONNECTED
from flowguard.telemetry import recorder
from flowguard.telemetry.observation import Observation
from flowguard.telemetry.pending import Portion
from flowguard.telemetry.progress import OF_A_BROKER
from flowguard.telemetry.recorder import Recorder
from flowguard.telemetry.runs import Runs
from flowguard.telemetry.schema import TABLES
from flowguard.types import Publish
from simulations.scenario import TracePlan
from simulations.scenario_files.traces import Curve, read_trace
from spark_analysis.runs.examination import UNFINISHED, examine, find_runs
from tests.flowguard.cli.test_serve import Caller, refused
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.real import broker, connect, until

MESSAGES = 5
CLIENTS = 3


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of all completed files of a run."""
    parts = sorted(directory.glob(f"{table}-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def runs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("live-*"))


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def talk(broker: Broker, client_id: str = "c") -> None:
    """A client that publishes and leaves."""
    with Caller(broker, client_id=client_id) as caller:
        caller.read()
        for number in range(1, MESSAGES + 1):
            caller.send(Publish("t", b"x", qos=1, packet_id=number))
            caller.read()


# --- as a process --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_clean_stop_leaves_a_complete_run_that_can_be_analysed_and_replayed(
    tmp_path: Path,
) -> None:
    live = tmp_path / "live"
    with running_broker(tmp_path, "--record", str(live)) as broker:
        talk(broker)
    (directory,) = runs_in(live)
    (run,), left_out = examine(find_runs([live]))
    assert (run.run_id, left_out) == (directory.name, [])
    assert (run.end["ended_by"], run.end["deaths_count"]) == ("stopped", 0)
    samples = rows(directory, "samples")
    assert sum(row["published_count"] for row in samples) == MESSAGES
    assert sum(row["accepted_count"] for row in samples) == 1
    assert samples[-1]["connections_count"] == 0
    assert run.end["ended_s"] >= samples[-1]["t_s"]
    (attempt,) = rows(directory, "attempts")
    assert attempt["outcome"] == CONNECTED
    assert sum(count for _, count in read_trace(directory, "clients")) == 1
    assert sum(count for _, count in read_trace(directory, "messages")) == MESSAGES


@pytest.mark.slow
def test_what_was_recorded_can_be_replayed_in_virtual_time(tmp_path: Path) -> None:
    live = tmp_path / "live"
    with running_broker(tmp_path, "--record", str(live)) as broker:
        for number in range(CLIENTS):
            talk(broker, f"c{number}")
    (directory,) = live.glob("live-*")
    # The last message is due after twenty seconds: the device that sends it connects in the first.
    messages = Curve(TracePlan(points=tuple(read_trace(directory, "messages"))))
    last_s = messages.when(messages.total)
    assert last_s is not None
    squeeze = last_s / 20
    trace = f'{{file = "{directory}", squeeze = {squeeze}}}'
    changes = {
        "populations.visitors.arrivals": trace,
        "populations.devices.publish.trace": trace,
        "populations.devices.clients": "1",
    }
    words = ["simulate", "diurnal", "--json"]
    words += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert (run["clients"], run["connected_share"]) == (CLIENTS + 1, 1.0)
    # Messages due before their device is connected do not count.
    assert 0 < run["acknowledged_count"] <= run["due_count"]


@pytest.mark.slow
def test_runs_and_files_follow_one_another(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_TELEMETRY__RUN_S": "2.5", "FLOWGUARD_TELEMETRY__ROTATE_S": "0.5"}
    live = tmp_path / "live"
    with running_broker(tmp_path, "--record", str(live), environment=environment) as broker:
        talk(broker, "first")
        wait_until(lambda: len(runs_in(live)) >= 2)
        # A busy machine has few samples to write; some run has them in more than one file.
        wait_until(lambda: any(len([*run.glob("samples-*.parquet")]) > 1 for run in runs_in(live)))
        talk(broker, "second")
    found, left_out = examine(find_runs([live]))
    ends = [run.end["ended_by"] for run in found]
    assert ends == ["duration"] * (len(ends) - 1) + ["stopped"]
    assert not left_out
    assert max(len(run.files["samples"]) for run in found) >= 2
    published = [rows(run, "samples") for run in runs_in(live)]
    assert sum(row["published_count"] for run in published for row in run) == 2 * MESSAGES
    for run in published:
        times_s = [row["t_s"] for row in run]
        assert times_s == sorted(times_s)
        assert times_s[0] < 2.5


@pytest.mark.slow
def test_a_killed_broker_leaves_what_was_completed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_TELEMETRY__ROTATE_S": "0.1"}
    live = tmp_path / "live"
    with running_broker(
        tmp_path,
        *("--record", str(live)),
        environment=environment,
        exit_code=-signal.SIGKILL,
    ) as broker:
        talk(broker)
        wait_until(lambda: any(live.glob("live-*/samples-00001.parquet")))
        broker.process.kill()
        broker.process.wait(PATIENCE_S)
    with running_broker(tmp_path, "--record", str(live), environment=environment) as broker:
        talk(broker)
    killed, completed = runs_in(live)
    found, left_out = examine(find_runs([live]))
    assert [(one.run_id, one.end["ended_by"]) for one in found] == [
        (killed.name, UNFINISHED),
        (completed.name, "stopped"),
    ]
    assert not left_out
    assert sum(row["published_count"] for row in rows(killed, "samples")) == MESSAGES


@pytest.mark.slow
def test_a_full_disk_ends_the_recording_and_not_the_broker(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_TELEMETRY__ROTATE_S": "0.1"}
    arguments = ("--store", "memory", "--record", str(tmp_path / "live"))
    with running_broker(tmp_path, *arguments, environment=environment) as broker:
        prlimit(broker.process.pid, RLIMIT_FSIZE, (8_192, 8_192))
        wait_until(lambda: "recording stopped" in broker.log.read_text())
        talk(broker)
    (line,) = [line for line in broker.log.read_text().splitlines() if "stopped" in line]
    assert "File too large" in line
    (directory,) = runs_in(tmp_path / "live")
    assert len(rows(directory, "run")) == 1


@pytest.mark.slow
def test_where_nothing_can_be_recorded_a_broker_that_should_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    code, complaint = refused(*arguments, "--record", str(tmp_path / "file"))
    assert code == 1
    assert f"flowguard cannot record in {tmp_path / 'file'}: File exists" in complaint
    with running_broker(tmp_path, "--record", str(tmp_path / "live")):
        code, complaint = refused(*arguments, "--record", str(tmp_path / "live"))
    assert code == 1
    assert "another broker records there" in complaint


@pytest.mark.slow
def test_without_pyarrow_a_broker_that_should_record_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from flowguard.cli import app\n"
        f"app(['serve', '--listen', '127.0.0.1:0', '--record', {str(tmp_path)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    what = f"needs: {sys.executable} -m pip install 'flowguard-mqtt[telemetry]'"
    assert done.stderr == f"flowguard cannot start\nthe recording {what}\n"


# --- in this process -----------------------------------------------------------------------------


@dataclass
class Recorded:
    running: Running
    recorder: Recorder
    stop: trio.CancelScope
    ended: trio.Event


@asynccontextmanager
async def recorded(folder: Path, **telemetry: Any) -> AsyncIterator[Recorded]:
    """A broker that records, until its recording is stopped or the block ends."""
    settings = {"telemetry": {"record_dir": str(folder), **telemetry}}
    async with broker(settings) as running, trio.open_nursery() as nursery:
        runs = Runs(folder, running.node.settings.telemetry)
        recording = Recorder(running, unix_clock(), runs)
        scene = Recorded(running, recording, trio.CancelScope(), trio.Event())

        async def record(task_status: trio.TaskStatus[None]) -> None:
            with scene.stop:
                await recording.run(task_status)
            scene.ended.set()

        await nursery.start(record)
        yield scene
        scene.stop.cancel()


async def serves(running: Running) -> None:
    """It answers a client."""
    client = await connect(running, "c")
    await client.ping()
    await client.close()


async def test_a_disk_that_hangs_costs_rows_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = threading.Event()
    write = Runs.write

    def wait(self: Runs, portions: Sequence[Portion], now_s: float) -> None:
        moves.wait(PATIENCE_S)
        write(self, portions, now_s)

    monkeypatch.setattr(Runs, "write", wait)
    async with recorded(tmp_path, buffer_rows_max=1_000) as scene:
        progress = scene.recorder.progress
        observed = scene.running.node.attempts.tell
        assert observed is not None
        for number in range(1_200):  # As many as no test has the time for.
            observed(cast(Any, None), float(number), float(number), CONNECTED)
        await serves(scene.running)
        assert progress.dropped_rows["attempts"]["rows"] >= 700
        moves.set()
        await until(lambda: progress.written_rows >= 500)
    (directory,) = runs_in(tmp_path)
    assert len(rows(directory, "attempts")) == 500
    assert rows(directory, "samples")
    assert len(rows(directory, "end")) == 1


async def test_a_disk_that_hangs_at_the_end_costs_the_run_and_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = threading.Event()
    monkeypatch.setattr(recorder, "FINISH_S", 0.1)
    monkeypatch.setattr(Runs, "write", lambda *_: moves.wait(PATIENCE_S))
    with structlog.testing.capture_logs() as log:
        async with recorded(tmp_path) as scene:
            scene.stop.cancel()
            with trio.fail_after(PATIENCE_S):
                await scene.ended.wait()
            await serves(scene.running)
            moves.set()
    (line,) = [line for line in log if line["event"] == "recording stopped"]
    assert line["error"] == "the end of the run was not taken within 0.1 s"


async def test_a_directory_that_disappears_ends_the_recording_with_a_line_in_the_log(
    tmp_path: Path,
) -> None:
    with structlog.testing.capture_logs() as log:
        async with recorded(tmp_path / "live", rotate_s=0.1) as scene:
            await until(lambda: any((tmp_path / "live").glob("live-*/run-*")))
            shutil.rmtree(tmp_path / "live")
            with trio.fail_after(PATIENCE_S):
                await scene.ended.wait()
            await serves(scene.running)
            assert scene.running.node.attempts.tell is None
            assert scene.recorder.progress.error is not None
            assert "No such file" in scene.recorder.progress.error
    (line,) = [line for line in log if line["event"] == "recording stopped"]
    assert (line["log_level"], line["error"]) == ("error", scene.recorder.progress.error)


async def test_a_bug_ends_the_recording_with_its_traceback_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    with structlog.testing.capture_logs() as log:
        async with recorded(tmp_path) as scene:
            monkeypatch.setattr(Observation, "sample", broken)
            with trio.fail_after(PATIENCE_S):
                await scene.ended.wait()
            await serves(scene.running)
    (line,) = [line for line in log if line["event"] == "recording stopped"]
    assert line["error"] == "ValueError('a bug')"
    (directory,) = runs_in(tmp_path)
    assert not list(directory.glob("end-*"))
    assert line["exc_info"]


def test_the_tables_of_a_broker_are_those_of_the_schema() -> None:
    assert set(OF_A_BROKER) == TABLES.keys() - {"run", "end", "clients", "violations"}
