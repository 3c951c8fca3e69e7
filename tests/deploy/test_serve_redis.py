"""`make serve-redis`: a server of its own and a broker on it, which begin and end together."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.broker import PATIENCE_S
from tests.support.redis_server import needs_redis

SCRIPT = Path(__file__).parents[2] / "scripts" / "serve-redis.sh"
WORDS = ("--listen", "127.0.0.1:0", "--http", "none")

pytestmark = pytest.mark.slow


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script in a folder of its own, where `.venv` has this flowguard."""
    needs_redis()
    if shutil.which("flock") is None:
        pytest.skip("flock is missing (util-linux)")
    program = tmp_path / ".venv" / "bin" / "flowguard"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flowguard "$@"\n')
    program.chmod(0o755)
    copy = tmp_path / "scripts" / SCRIPT.name
    copy.parent.mkdir()
    shutil.copy(SCRIPT, copy)
    return copy


@pytest.fixture
def served(script: Path) -> Iterator[subprocess.Popen[str]]:
    """The script at work, in a process group of its own, as from a terminal."""
    with (script.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [script, *WORDS], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_a_second_server_on_the_same_files_is_refused(
    script: Path, served: subprocess.Popen[str]
) -> None:
    second = subprocess.run(
        [script, *WORDS], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert second.returncode == 1
    assert second.stderr.startswith("another redis-server has ")
    assert served.poll() is None


def test_an_interrupt_drains_the_broker_and_then_ends_the_server(
    script: Path, served: subprocess.Popen[str]
) -> None:
    os.killpg(served.pid, signal.SIGINT)
    assert served.wait(PATIENCE_S) == 0
    assert " drained " in (script.parent / "log").read_text()
    server = (script.parents[1] / "flowguard-redis" / "redis.log").read_text()
    assert "Received SIGINT" not in server
    assert "ready to exit" in server
