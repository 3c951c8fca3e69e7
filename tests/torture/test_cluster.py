"""Three nodes over Redis under faults keep what they promised; `tests.torture.cluster`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import needs_redis
from tests.torture.cluster import ClusterTorture
from tests.torture.cluster_faults import place_of
from tests.torture.network import is_possible

FAULTS = 6
CUTS = 4


@pytest.mark.slow
@pytest.mark.long
def test_nodes_under_faults_keep_what_they_promised(tmp_path: Path) -> None:
    names = ["kill", "stop", "term", "worker", "redis", "duel"]
    with place_of("server", "fsync", tmp_path / "redis") as place:
        verdict = ClusterTorture(tmp_path, place, names=names, faults=FAULTS, seed=1).run()
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.faults.total() == FAULTS
    assert verdict.acknowledged > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not is_possible(), reason="needs namespaces: unshare --user --net --mount")
def test_nodes_that_are_cut_off_keep_what_they_promised() -> None:
    needs_redis()
    names = ["--fault", "cut", "--fault", "one-way", "--fault", "alone", "--fault", "disk"]
    words = [sys.executable, "-m", "tests.torture.cluster", "--faults", str(CUTS), *names]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
