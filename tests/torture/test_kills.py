"""A broker killed with SIGKILL loses nothing that it acknowledged (`tests.torture.run`).

No acknowledged message is lost, no QoS 2 message reaches an application twice, first deliveries
keep the order of publisher and topic, sessions, subscriptions, retained messages and wills survive.
FLOWGUARD_TORTURE_SEED repeats a run, as far as clocks go; `make torture` kills for longer.
"""

import os
from pathlib import Path

import pytest

from flowguard import build
from tests.torture.run import Torture
from tests.torture.stores import ROLLING

IS_INSTALLED = build.name() == "compiled"
"""Most kills hit the build that is installed."""
KILLS = 60 if IS_INSTALLED else 15
LOG_KILLS = 15 if IS_INSTALLED else 10
SEED = int(os.environ.get("FLOWGUARD_TORTURE_SEED", "1"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "kills"), [("rocks", KILLS), ("log", LOG_KILLS), (ROLLING, LOG_KILLS)]
)
def test_a_killed_broker_keeps_what_it_promised(store: str, kills: int, tmp_path: Path) -> None:
    verdict = Torture(tmp_path, kills=kills, seed=SEED, store=store).run()
    print(verdict)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == kills
    assert (tmp_path / "broker.log").read_text() == ""
