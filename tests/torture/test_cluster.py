"""Three nodes over Redis under faults keep what they promised; `tests.torture.cluster`."""

import subprocess
import sys

import pytest

from tests.support.redis_server import needs_redis
from tests.torture.network import is_possible

FAULTS = 8
ANYWHERE = ("kill", "stop", "term", "worker", "redis", "duel", "clock")
IN_A_NETWORK = ("cut", "one-way", "alone", "disk")


@pytest.mark.slow
@pytest.mark.long
def test_nodes_under_faults_keep_what_they_promised() -> None:
    needs_redis()
    names = ANYWHERE + IN_A_NETWORK if is_possible() else ANYWHERE
    words = [word for name in names for word in ("--fault", name)]
    command = [sys.executable, "-m", "tests.torture.cluster", "--faults", str(FAULTS), *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " acknowledged, " in run.stdout
