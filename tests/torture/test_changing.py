"""Killed workers whose number changes keep what they promised; `tests.torture.changing`."""

from pathlib import Path

import pytest

from tests.torture.changing import ChangingTorture

KILLS = 3


@pytest.mark.slow
def test_killed_workers_keep_what_they_promised_when_their_number_changes(tmp_path: Path) -> None:
    torture = ChangingTorture(tmp_path, kills=KILLS, seed=1)
    verdict = torture.run()
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert verdict.acknowledged > 0
    assert torture.changes_count > 0
