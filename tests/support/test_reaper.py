"""A run of tests that is interrupted leaves no process and no file behind."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import HANG_S
from tests.support.reaper import VARIABLE, bearers, folder_in_memory
from tests.support.redis_server import redis_server

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.05
STARTS_CHILDREN = """
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

STILL = "from signal import *; signal(SIGTERM, SIG_IGN); [pause() for _ in iter(int, 1)]"
AND_LEAVE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STILL!r}])"


@pytest.mark.parametrize("number", [1, 2])
def test_starts_children(number):
    still = [sys.executable, "-c", STILL]
    children = [
        subprocess.Popen(still),
        subprocess.Popen(still, start_new_session=True),
        subprocess.Popen(still, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False),
    ]
    subprocess.run([sys.executable, "-c", AND_LEAVE], check=True)
    if "PYTEST_XDIST_WORKER" in os.environ:  # a fork of a program that was started with the mark
        multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()
    (Path(__file__).parent / f"left-{number}").write_text(tempfile.mkdtemp())
    (Path(__file__).parent / f"ready-{number}").touch()
    threading.Event().wait()
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Yield a name in the environment of all processes of a run; the test ends those that are
    left."""
    name = f"run-{secrets.token_hex(8)}"
    yield name
    for pid in bearers(name):
        os.kill(pid, signal.SIGKILL)


def start(folder: Path, name: str, *options: str) -> "subprocess.Popen[bytes]":
    """Tests in a process group of their own, as a shell starts them."""
    test = folder / "test_children.py"
    test.write_text(STARTS_CHILDREN)
    inherited = (VARIABLE, "PYTEST_XDIST_WORKER")
    clean = {key: text for key, text in os.environ.items() if key not in inherited}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(test)],
        cwd=ROOT,
        env=clean | {"PYTEST_PLUGINS": "tests.conftest", "NAME_OF_RUN": name},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_until_ready(run: "subprocess.Popen[bytes]", folder: Path, count: int) -> None:
    while len(list(folder.glob("ready-*"))) < count:
        assert run.poll() is None
        time.sleep(LOOK_S)


def wait_until_gone(name: str, folder: Path) -> None:
    until_s = time.monotonic() + HANG_S
    while left := bearers(name):
        assert time.monotonic() < until_s, [
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left
        ]
        time.sleep(LOOK_S)
    numbers = [ready.name.removeprefix("ready-") for ready in folder.glob("ready-*")]
    left = [Path((folder / f"left-{number}").read_text()) for number in numbers]
    while any(path.exists() for path in left):
        assert time.monotonic() < until_s, left
        time.sleep(LOOK_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "to_group", "processes"),
    [
        pytest.param(signal.SIGINT, True, 2, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, False, 2, id="SIGTERM"),
        pytest.param(signal.SIGKILL, False, 2, id="SIGKILL"),
        pytest.param(signal.SIGINT, False, 0, id="SIGINT, one process"),
        pytest.param(signal.SIGKILL, True, 0, id="SIGKILL to the group, one process"),
    ],
)
def test_an_interrupted_run_leaves_no_process(
    tmp_path: Path, name: str, sent: signal.Signals, to_group: bool, processes: int
) -> None:
    run = start(tmp_path, name, "-n", str(processes))
    wait_until_ready(run, tmp_path, max(1, processes))
    if to_group:
        os.killpg(run.pid, sent)
    else:
        run.send_signal(sent)
    run.wait(HANG_S)
    wait_until_gone(name, tmp_path)


@pytest.mark.slow
def test_a_run_that_ends_by_itself_leaves_no_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "conftest.py").write_text(
        "import threading\nthreading.Event.wait = lambda self, timeout=None: True\n"
    )
    run = start(tmp_path, name, "-n", "0")
    run.wait(HANG_S)
    assert len(list(tmp_path.glob("ready-*"))) == 2
    wait_until_gone(name, tmp_path)


def test_a_redis_server_keeps_the_mark(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME_OF_RUN", name)
    with redis_server(tmp_path):
        assert bearers(name)


def test_temporary_files_are_in_memory_only_if_there_is_space(tmp_path: Path) -> None:
    assert folder_in_memory(tmp_path, 0) == str(tmp_path)
    assert folder_in_memory(tmp_path, 1 << 62) is None
    assert folder_in_memory(tmp_path / "missing", 0) is None
