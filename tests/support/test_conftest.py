"""How tests are run: which of them by one process, and what is said last."""

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

NAMES_ITS_PROCESS = """
import os
import pytest

@pytest.mark.parametrize("number", range(8))
def test_names_its_process(number):
    print("by", os.environ["PYTEST_XDIST_WORKER"])
"""


def run(folder: Path, *options: str) -> str:
    """Return the output of the tests in a folder, run as those of this repository are."""
    (folder / "pytest.ini").touch()
    path = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=os.environ | {"PYTEST_PLUGINS": "tests.conftest", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


WHY = "no program here: apt-get install it; or something like it"
LAST = f"skipped: 2 ({WHY}), 1 (too old)"


@pytest.mark.slow
def test_tests_that_share_what_is_dear_are_run_by_one_process(tmp_path: Path) -> None:
    """And the last line of such a run says what was skipped."""
    room = tmp_path / "tests" / "spark_of_ours"
    room.mkdir(parents=True)
    (room / "test_processes.py").write_text(NAMES_ITS_PROCESS)
    (tmp_path / "test_skips.py").write_text(SKIPS)
    said = run(tmp_path, "-n", "2", "-rP")
    assert said.count("by gw") == 8
    assert said.count("by gw0") in (0, 8)
    assert said.splitlines()[-1] == LAST


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_skips_of_a_run_inside_a_test_are_shown(tmp_path: Path, processes: str) -> None:
    line = "on the compiled packages, skipped: 1 (no program)"
    (tmp_path / "test_inside.py").write_text(
        f"def test_run(record_property):\n    record_property('skipped', {line!r})\n"
    )
    assert line in run(tmp_path, "-n", processes).splitlines()


@pytest.mark.slow
def test_the_last_line_of_a_run_says_what_was_skipped_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_skips.py").write_text(SKIPS)
    assert run(tmp_path, "-n", "0").splitlines()[-1] == LAST
