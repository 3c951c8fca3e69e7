"""Broker and Redis killed with SIGKILL at any moment, together or alone: with the level `fsync`
nothing that was acknowledged is lost. With one that is too low it is: else this proves nothing.

A broker is killed as in `tests.torture.test_kills`; what happens to Redis is in
`tests.torture.redis_faults`. `make torture ARGS="--store redis --fault NAME"` goes on for longer.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.redis_faults import RedisTorture
from tests.torture.run import CONTROL_PATIENCE_S
from tests.torture.test_kills import SEED

KILLS = 40
SERVER_KILLS_MIN = 20
FAULT_KILLS = 8
PAUSE_S = 1.0
CONTROL_KILLS = 10
ROUNDS_MAX = 5


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis-data", request.param) as server:
        yield server


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", ["stream", "zset"])
@pytest.mark.parametrize("server", [ALWAYS], indirect=True, ids=["always"])
def test_nothing_acknowledged_is_lost_whoever_is_killed(
    server: RedisServer, tmp_path: Path, layout: str
) -> None:
    torture = RedisTorture(tmp_path, server, layout=layout, kills=KILLS, seed=SEED)
    verdict = torture.run()
    print(verdict, torture.fault_count)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert torture.fault_count >= SERVER_KILLS_MIN
    assert (tmp_path / "broker.log").read_text() == ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("fault", ["pause", "flush", "second"])
@pytest.mark.parametrize("server", [ALWAYS], indirect=True, ids=["always"])
def test_nothing_acknowledged_is_lost_whatever_happens_to_redis(
    server: RedisServer, tmp_path: Path, fault: str
) -> None:
    torture = RedisTorture(
        tmp_path, server, fault=fault, kills=FAULT_KILLS, seed=SEED, pause_s=PAUSE_S
    )
    verdict = torture.run()
    print(verdict, torture.fault_count)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert torture.fault_count > 0


@pytest.mark.slow
@pytest.mark.parametrize("server", [{}], indirect=True, ids=["no append-only file"])
def test_a_level_that_is_too_low_loses_what_was_acknowledged(
    server: RedisServer, tmp_path: Path
) -> None:
    """The server keeps nothing: killed with its broker, it takes all with it."""
    for seed in range(ROUNDS_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        torture = RedisTorture(
            folder,
            server,
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
