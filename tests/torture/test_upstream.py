"""A proxy's upstream is killed and started again under load; `tests.torture.upstream` at size."""

from pathlib import Path

import pytest

from tests.torture.upstream import GATE, run

CLIENTS = 60
KILLS = 2


@pytest.mark.slow
def test_a_killed_upstream_costs_no_acknowledged_message_and_no_client(tmp_path: Path) -> None:
    findings = run(tmp_path, CLIENTS, KILLS)
    assert len(findings.back_s) == KILLS
    assert findings.acknowledged > 0
    assert (findings.lost, findings.not_back) == (0, 0), findings
    assert 0 < findings.peak <= GATE
    assert findings.connects >= CLIENTS * (KILLS + 1)
