"""The supervisor: workers that end and start again, signals, and starts that are rejected."""

import json
import os
import signal
import time
from pathlib import Path
from urllib.error import HTTPError

import pytest

from flowguard.app.workers.supervisor import PING_S
from flowguard.codec.packets import Connack, Disconnect, Pingreq, Pingresp
from flowguard.types import Properties, ReasonCode
from tests.flowguard.cli.http_port import run
from tests.flowguard.workers.clients import (
    Client,
    Machine,
    machine,
    names,
    stopped,
    tcp,
    wait_until_ended,
)
from tests.interop.broker import PATIENCE_S, start

pytestmark = pytest.mark.slow
TIMEOUT_S = 5.0
SHORT_TIMEOUT = {"FLOWGUARD_NODE__WORKER_TIMEOUT_S": str(TIMEOUT_S)}
KEPT = Properties(session_expiry_interval=1_000)


def wait_until_ready_again(running: Machine, index: int, before: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while running.pid(index) == before:
        assert time.monotonic() < deadline_s, running.broker.log.read_text()
        time.sleep(0.02)


def connect(running: Machine, name: str, *, clean_start: bool = True) -> tuple[Client, Connack]:
    client = Client(tcp(running.addresses[0]), name, clean_start=clean_start, properties=KEPT)
    return client, client.accepted()


def test_killed_worker_starts_again_with_its_sessions(tmp_path: Path) -> None:
    with machine(tmp_path) as running:
        (name,), (other,) = names(0, 1), names(1, 1)
        client, _ = connect(running, name)
        witness, _ = connect(running, other)
        before = running.pid(0)
        os.kill(before, signal.SIGKILL)
        assert client.read() is None
        client.close()
        wait_until_ready_again(running, 0, before)
        client, connack = connect(running, name, clean_start=False)
        assert connack.session_present
        witness.send(Pingreq())
        assert isinstance(witness.read(), Pingresp)
        assert "why=SIGKILL" in running.broker.log.read_text()
        assert running.connected() == [1, 1]
        client.close()
        witness.close()


def readiness(running: Machine) -> str:
    """Return the answer of /ready, also if it is an error."""
    try:
        return running.text("/ready").strip()
    except HTTPError as error:
        with error:
            return error.read().decode().strip()


def test_worker_that_does_not_answer_is_shown_until_it_answers_again(tmp_path: Path) -> None:
    with machine(tmp_path, "--store", "memory") as running:
        before = running.pids()
        with stopped(running.pid(1)):
            running.broker.wait_for_log("worker does not answer")
            assert readiness(running) == "1 of 2 workers serve; worker-1 does not answer"
            assert 'flowguard_worker_up{worker="1"} 0' in running.text("/metrics")
            assert running.connected() == [0, None]
        running.broker.wait_for_log("worker answers again")
        assert readiness(running) == "2 of 2 workers serve"
        assert running.pids() == before


def test_worker_that_does_not_answer_for_long_starts_again_with_its_sessions(
    tmp_path: Path,
) -> None:
    with machine(tmp_path, environment=SHORT_TIMEOUT) as running:
        (name,) = names(1, 1)
        client, _ = connect(running, name)
        before = running.pid(1)
        with stopped(before):
            wait_until_ready_again(running, 1, before)
        assert client.read() is None
        client.close()
        client, connack = connect(running, name, clean_start=False)
        assert connack.session_present
        client.close()
        assert "worker does not answer; killed" in running.broker.log.read_text()


def test_time_without_the_supervisor_does_not_count_against_a_worker(tmp_path: Path) -> None:
    with machine(tmp_path, "--store", "memory", environment=SHORT_TIMEOUT) as running:
        before = running.pids()
        with stopped(running.pid(1)), stopped(running.broker.process.pid):
            time.sleep(2 * TIMEOUT_S)
        time.sleep(2 * PING_S)  # The supervisor judges.
        assert readiness(running) == "2 of 2 workers serve"
        assert running.pids() == before


def test_stop_ends_a_worker_that_does_not_answer(tmp_path: Path) -> None:
    with (
        machine(tmp_path, "--store", "memory", environment=SHORT_TIMEOUT) as running,
        stopped(running.pid(1)),
    ):
        assert running.broker.terminate() == 0


def test_workers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    with machine(tmp_path, exit_code=-signal.SIGKILL) as running:
        pids = running.pids().values()
        os.kill(running.broker.process.pid, signal.SIGKILL)
        running.broker.process.wait(PATIENCE_S)
        wait_until_ended(pids)
    with machine(tmp_path):  # The locks of the stores have ended with them.
        pass


def test_sigterm_to_all_processes_drains_the_workers(tmp_path: Path) -> None:
    listeners = ("--listen", "127.0.0.1:0", "--listen", f"unix:{tmp_path}/socket")
    with machine(tmp_path, *listeners) as running:
        clients = [connect(running, names(index, 1)[0])[0] for index in (0, 1)]
        assert (tmp_path / "socket").is_socket()
        for pid in running.pids().values():  # As systemd does it.
            os.kill(pid, signal.SIGTERM)
        assert running.broker.terminate() == 0
        assert not (tmp_path / "socket").exists()
        assert not [path for path in (tmp_path / "data").iterdir() if path.is_socket()]
        for client in clients:
            goodbye = client.read()
            assert isinstance(goodbye, Disconnect)
            assert goodbye.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
            client.close()


def test_sighup_reloads_each_worker(tmp_path: Path) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text('[roles.guest]\nanonymous = true\npublish = ["a"]\n')
    with machine(tmp_path, "--acl", str(rules)) as running:
        running.broker.process.send_signal(signal.SIGHUP)
        for worker in running.pids():
            running.broker.wait_for_log(f"worker={worker}")
        deadline_s = time.monotonic() + PATIENCE_S
        while running.broker.log.read_text().count("reloaded certificates") < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def rejected(*arguments: str) -> str:
    """Return the complaint of a broker that does not start."""
    process = start("serve", "--listen", "127.0.0.1:0", "--http", "none", *arguments)
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2, complaint
    assert "Traceback" not in complaint
    return complaint


def test_second_start_is_rejected_and_so_is_another_number_of_workers(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with machine(tmp_path):
        assert "in use by another flowguard" in rejected("--workers", "2", "--data", data)
    complaint = rejected("--workers", "3", "--data", data)
    assert "start with --workers 2" in complaint
    assert f"flowguard store workers {data} 3 --out {data}-3" in complaint
    assert f"flowguard store workers {data} 1 --out {data}-1" in rejected("--data", data)


def test_store_of_one_worker_is_not_taken_by_several(tmp_path: Path) -> None:
    with machine(tmp_path, "--workers", "1"):
        pass
    data = tmp_path / "data"
    complaint = rejected("--workers", "2", "--data", str(data))
    assert "start with --workers 1" in complaint
    assert f"flowguard store workers {data} 2 --out {data}-2" in complaint


def test_worker_that_cannot_start_ends_the_first_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "worker-1").mkdir(parents=True)
    (data / "worker-1" / "CURRENT").write_text("damaged")
    process = start(
        "serve", "--listen", "127.0.0.1:0", "--workers", "2", "--data", str(data), "--http", "none"
    )
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 73, complaint
    assert "worker-1: flowguard cannot use" in complaint


def test_http_shows_each_worker(tmp_path: Path) -> None:
    with machine(tmp_path, "--store", "memory") as running:
        names_of = [names(index, 1)[0] for index in (0, 1)]
        clients = [connect(running, name)[0] for name in names_of]
        metrics = running.text("/metrics")
        for index, name in enumerate(names_of):
            assert f'flowguard_worker_up{{worker="{index}"}} 1' in metrics
            assert running.get(f"/explain/{name}")["client_id"] == name
            assert running.get(f"/workers/{index}/status")["clients"]["connected"] == 1
        assert metrics.count("# TYPE flowguard_clients_connected gauge") <= 1
        assert running.text("/ready") == "2 of 2 workers serve\n"
        assert running.text("/health") == "alive\n"
        assert '<a href="workers/1/">worker-1</a></td><td>1</td>' in running.text("/")
        assert "<th>all</th><th>2</th>" in running.text("/")
        assert "new EventSource" in running.text("/workers/1/")
        url = ("--url", f"http://{running.http}")
        rows = run("clients", "list", "--json", *url)[1].splitlines()
        assert sorted(json.loads(row)["client_id"] for row in rows) == sorted(names_of)
        with running.open("/workers/1/events") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            assert events.readline().startswith(b"event:")
        code, frame, _ = run("top", running.http, "--once")
        assert code == 0
        rows = [line.split()[:3] for line in frame.splitlines()]
        assert [row for row in rows if row and row[0] in ("0", "1", "all")] == [
            ["0", "1", "1"],
            ["1", "1", "1"],
            ["all", "2", "2"],
        ]
        code, frame, _ = run("top", f"{running.http}/workers/0", "--once")
        assert code == 0, frame
        assert run("clients", "flapping", *url)[1] == "No client flaps.\n"
        for name, client in zip(names_of, clients, strict=True):
            for _ in range(2):
                assert run("clients", "kick", name, *url)[0] == 0
                assert isinstance(client.read(), Disconnect)
                client.close()
                client = connect(running, name)[0]
            assert run("clients", "kick", name, *url)[0] == 0
            client.close()
        rows = run("clients", "flapping", "--json", *url)[1].splitlines()
        assert sorted(json.loads(row)["client_id"] for row in rows) == sorted(names_of)
        for client in clients:
            client.close()


def test_sigterm_during_the_start_ends_it_also_if_a_worker_has_ended(tmp_path: Path) -> None:
    data, log = str(tmp_path / "data"), tmp_path / "log"
    with log.open("w") as stderr:
        process = start(
            *("serve", "--listen", "127.0.0.1:0", "--workers", "2", "--data", data),
            *("--http", "none"),
            stderr=stderr,
        )
    pid = second_child(process.pid)
    with stopped(pid):
        process.send_signal(signal.SIGTERM)
        while "signal received" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def second_child(pid: int) -> int:
    """Wait for the second worker of a supervisor, until it runs its own program."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) > 1 and b"\0worker\0" in Path(f"/proc/{children[1]}/cmdline").read_bytes():
            return int(children[1])
        time.sleep(0.01)
