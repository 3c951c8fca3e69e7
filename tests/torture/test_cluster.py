"""Three nodes over Redis under faults keep what they promised; `tests.torture.cluster`."""

from pathlib import Path

import pytest

from tests.support.redis_server import ALWAYS, redis_server
from tests.torture.cluster import ClusterTorture

FAULTS = 6


@pytest.mark.slow
@pytest.mark.long
def test_nodes_under_faults_keep_what_they_promised(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", ALWAYS) as redis:
        verdict = ClusterTorture(tmp_path, redis, faults=FAULTS, seed=1).run()
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.faults.total() == FAULTS
    assert verdict.acknowledged > 0
