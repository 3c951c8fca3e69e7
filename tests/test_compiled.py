"""The compiled rooms behave like their sources: the same tests pass on them.

Nothing here has a limit in time, which on a busy machine is one on the work of others: a process
that spins is ended by its processor time, and the tests of the rooms have their own limit each.
"""

import faulthandler
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CPU_S = 3_600
"""Of one process: many times what compiling takes, and what the tests of a room take."""
ASK_OF_COLLECTOR = """
import gc
from flowguard.records import Append, Delivery
from flowguard.types import Publish

message = Publish("t", b"", 1)
delivery = Delivery(message, 1, False, (), 0.0)
for each in (message, delivery, Append("c", 1, delivery)):
    print(gc.is_tracked(each))
"""
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("compiled")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that comes first on PYTHONPATH."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: apt-get install gcc python3-dev")
    folder = tmp_path_factory.mktemp("rooms") / "compiled"
    said = run([sys.executable, str(ROOT / "scripts" / "compile.py"), str(folder)])
    assert " s  checking types" in said
    assert " s  compiling the rooms" in said
    return folder


def test_compiled_rooms_are_extensions_and_hide_messages_from_the_collector(compiled: Path) -> None:
    where = "from flowguard.codec import decoder; print(decoder.__file__)"
    assert run([sys.executable, "-c", where], compiled).strip().endswith(".so")
    assert run([sys.executable, "-c", ASK_OF_COLLECTOR], compiled).split() == ["False"] * 3


@pytest.mark.parametrize(
    "room",
    [
        "flowguard/codec",
        "flowguard/flow",
        "flowguard/routing",
        "flowguard/node",
        "flowguard/session",
        "flowguard/stores/rocks",
        "fuzz",
    ],
)
def test_the_tests_of_a_room_pass_on_the_compiled_rooms(compiled: Path, room: str) -> None:
    # Without src on pytest's own path: it would come before the compiled folder.
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=."]
    run([sys.executable, "-m", "pytest", *options, f"tests/{room}"], compiled)


def run(command: list[str], compiled: Path | None = None) -> str:
    """What it prints; it and whatever it has started end here."""
    faulthandler.cancel_dump_traceback_later()  # pytest's own limit for a test, in time
    environment = {"HYPOTHESIS_PROFILE": "brief"}
    if compiled is not None:
        environment["PYTHONPATH"] = str(compiled)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU_S, CPU_S))
        try:
            output, _ = process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-8_000:]
    return output
