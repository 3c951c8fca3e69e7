"""Broker and Redis killed with SIGKILL at any moment, together or alone: with the level `fsync`
nothing that was acknowledged is lost. With one that is too low it is: else this proves nothing.

A broker is killed as in `tests.torture.test_kills`; Redis while it serves one, or with it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.run import CONTROL_PATIENCE_S, Torture
from tests.torture.stores import REDIS_FILE
from tests.torture.test_kills import SEED

KILLS = 40
SERVER_KILLS_MIN = 20
CONTROL_KILLS = 10
ROUNDS_MAX = 5


class TwoKills(Torture):
    """A run in which the server is killed, too."""

    def __init__(self, folder: Path, server: RedisServer, **how: Any) -> None:
        super().__init__(folder, store="redis", on_kill=self._kill_server_too, **how)
        self._server = server
        self.server_kills = 0

    def _kill_server(self) -> None:
        self._server.kill()
        self._server.start()
        self.server_kills += 1

    def _kill_server_too(self, _: object) -> None:
        """With the broker: there is nobody who could write anything again."""
        if self._random.random() < 0.5:
            self._kill_server()

    def _load(self, seconds: float) -> None:
        super()._load(seconds / 2)
        if self._random.random() < 0.5:
            self._kill_server()
        super()._load(seconds / 2)


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
    (tmp_path / REDIS_FILE).write_text(f"{server.unix_url} fsync {layout}")
    torture = TwoKills(tmp_path, server, kills=KILLS, seed=SEED)
    verdict = torture.run()
    print(verdict, torture.server_kills)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert torture.server_kills >= SERVER_KILLS_MIN
    assert (tmp_path / "broker.log").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize("server", [{}], indirect=True, ids=["no append-only file"])
def test_a_level_that_is_too_low_loses_what_was_acknowledged(
    server: RedisServer, tmp_path: Path
) -> None:
    """The server keeps nothing: killed with its broker, it takes all with it."""
    for seed in range(ROUNDS_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / REDIS_FILE).write_text(f"{server.unix_url} memory stream")
        torture = TwoKills(
            folder, server, kills=CONTROL_KILLS, seed=seed, patience_s=CONTROL_PATIENCE_S
        )
        findings = torture.run().findings
        assert findings
        if any("lost" in finding for finding in findings):
            return
    pytest.fail(f"{ROUNDS_MAX} runs, and nothing was lost: {findings[:50]}")
