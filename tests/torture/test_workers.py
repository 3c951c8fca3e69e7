"""Workers that are killed one after the other keep what they promised; `tests.torture.workers`."""

from pathlib import Path

import pytest

from tests.torture.workers import WorkersTorture

KILLS = 3


@pytest.mark.slow
def test_killed_workers_keep_what_they_promised(tmp_path: Path) -> None:
    verdict = WorkersTorture(tmp_path, kills=KILLS, seed=1).run()
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert verdict.acknowledged > 0
