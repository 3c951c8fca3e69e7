"""What a run says last."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKIPS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_needs_a_program(number):
    pytest.skip("no program here: apt-get install it\\nor something like it")

@pytest.mark.skipif(True, reason="too old")
def test_needs_another_system():
    assert False

def test_runs():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_last_line_of_a_run_says_what_was_skipped_and_why(
    tmp_path: Path, processes: str
) -> None:
    test = tmp_path / "test_skips.py"
    test.write_text(SKIPS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", processes, str(test)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_PLUGINS": "tests.conftest"},
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.splitlines()[-1]
    why = "no program here: apt-get install it; or something like it"
    assert last == f"skipped: 2 ({why}), 1 (too old)"
