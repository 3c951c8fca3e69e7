"""`make check` compiles in the background while lint runs."""

import shutil
import subprocess
import time
from pathlib import Path
from subprocess import DEVNULL

import pytest

ROOT = Path(__file__).resolve().parent.parent

# It compiles for ten minutes, and lint fails as soon as that has begun.
PROGRAM = """\
#!/bin/sh
case "$*" in
*compile.py) sleep 600 & echo $$ > {folder}/compiler; echo $! > {folder}/child; wait ;;
*) until [ -s {folder}/child ]; do sleep 0.1; done; exit 1 ;;
esac
"""


def runs(pid: int) -> bool:
    """Whether a process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid, which Linux has")
def test_failed_lint_ends_the_compiler_and_its_children(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    command = ["make", "-C", str(ROOT), "check", f"PY={program}", "DEV=", "RUN=", "PEERS=:"]
    assert subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, timeout=60).returncode
    left = [int((tmp_path / name).read_text()) for name in ("compiler", "child")]
    deadline_s = time.monotonic() + 30  # A signal may take effect after `make` has ended.
    while any(map(runs, left)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(runs, left))
