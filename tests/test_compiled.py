"""The compiled rooms behave like their sources: the same tests pass on them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("codec", "flow", "routing", "node")
TIMEOUT_S = 900
ASK_OF_COLLECTOR = """
import gc
from flowguard.records import Append, Delivery
from flowguard.types import Publish

message = Publish("t", b"", 1)
delivery = Delivery(message, 1, False, (), 0.0)
for each in (message, delivery, Append("c", 1, delivery)):
    print(gc.is_tracked(each))
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_tests_of_the_compiled_rooms_pass_on_the_compiled_rooms(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: apt-get install gcc python3-dev")
    folder = tmp_path / "compiled"
    run([sys.executable, str(ROOT / "scripts" / "compile.py"), str(folder)], {})
    environment = {"PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "brief"}
    shown = run(
        [sys.executable, "-c", "from flowguard.codec import decoder; print(decoder.__file__)"],
        environment,
    )
    assert shown.strip().endswith(".so")
    looked_through = run([sys.executable, "-c", ASK_OF_COLLECTOR], environment)
    assert looked_through.split() == ["False"] * 3
    tests = [f"tests/flowguard/{room}" for room in ROOMS]
    # Without src on pytest's own path: it would come before the compiled folder.
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=."]
    run([sys.executable, "-m", "pytest", *options, *tests], environment)


def run(command: list[str], environment: dict[str, str]) -> str:
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4_000:] + result.stderr[-4_000:]
    return result.stdout
