"""Broker and Redis killed with SIGKILL at any moment, together or alone: with the level `fsync`
nothing that was acknowledged is lost. With one that is too low it is: else this proves nothing.

A broker is killed as in `tests.torture.test_kills`; what happens to Redis is in
`tests.torture.redis_faults`. `make torture ARGS="--store redis --fault NAME"` goes on for longer.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.torture.redis_faults import RedisTorture, place_for
from tests.torture.run import CONTROL_PATIENCE_S
from tests.torture.test_kills import SEED

KILLS = 10
SERVER_KILLS_MIN = 4
FAULT_KILLS = 5
PAUSE_S = 1.0
CONTROL_KILLS = 10
ROUNDS_MAX = 5


@pytest.mark.long
@pytest.mark.parametrize("layout", ["stream", "zset"])
def test_nothing_acknowledged_is_lost_whoever_is_killed(tmp_path: Path, layout: str) -> None:
    with place_for("kill", "fsync", tmp_path / "redis-data") as server:
        torture = RedisTorture(tmp_path, server, layout=layout, kills=KILLS, seed=SEED)
        verdict = torture.run()
    print(verdict, torture.fault_count)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert torture.fault_count >= SERVER_KILLS_MIN
    assert (tmp_path / "broker.log").read_text() == ""


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "level"),
    [
        ("pause", "fsync"),
        ("flush", "fsync"),
        ("second", "fsync"),
        ("full", "fsync"),
        ("split", "fsync"),
        ("fail-over", "replicated"),
        ("partition", "replicated"),
    ],
)
def test_nothing_acknowledged_is_lost_whatever_happens_to_redis(
    tmp_path: Path, fault: str, level: str
) -> None:
    with place_for(fault, level, tmp_path / "redis-data") as place:
        how: dict[str, Any] = {"level": level, "kills": FAULT_KILLS, "pause_s": PAUSE_S}
        torture = RedisTorture(tmp_path, place, fault=fault, seed=SEED, **how)
        verdict = torture.run()
    print(verdict, torture.fault_count, torture.refused_count)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert torture.fault_count > 0
    assert (torture.refused_count > 0) == (fault == "full")


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "partition"])
def test_a_level_that_is_too_low_loses_what_was_acknowledged(tmp_path: Path, fault: str) -> None:
    """A server that keeps nothing takes all with it, and a replica has not what it never heard."""
    for seed in range(ROUNDS_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with place_for(fault, "memory", folder / "redis-data") as place:
            torture = RedisTorture(
                folder,
                place,
                fault=fault,
                level="memory",
                kills=CONTROL_KILLS,
                seed=seed,
                patience_s=CONTROL_PATIENCE_S,
            )
            findings = torture.run().findings
        assert findings
        if any("lost" in finding for finding in findings):
            return
    pytest.fail(f"{ROUNDS_MAX} runs, and nothing was lost: {findings[:50]}")
