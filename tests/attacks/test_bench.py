"""The bench's verdicts: no attack holds that was not run, or has shown nothing."""

import pytest
import trio

from tests.attacks import bench
from tests.attacks.attack import Attack, CannotRun, Finding, Run, Size
from tests.attacks.bench import Outcome, judge


async def holds(size: Size) -> Finding:
    return Finding(True, "whole")


async def does_not(size: Size) -> Finding:
    return Finding(False, "half")


async def cannot(size: Size) -> Finding:
    raise CannotRun("it needs root")


async def breaks(size: Size) -> Finding:
    raise ConnectionResetError("gone")


async def hangs(size: Size) -> Finding:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(
    ("run", "control", "outcome"),
    [
        (holds, does_not, Outcome.HOLDS),
        (holds, holds, Outcome.SHOWS_NOTHING),
        (does_not, does_not, Outcome.BROKEN),
        (does_not, holds, Outcome.BROKEN),
        (breaks, does_not, Outcome.BROKEN),
        (holds, breaks, Outcome.SHOWS_NOTHING),
        (hangs, does_not, Outcome.BROKEN),
        (cannot, does_not, Outcome.NOT_RUN),
        (holds, cannot, Outcome.NOT_RUN),
    ],
)
def test_a_verdict(
    run: Run, control: Run, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "HANGS_S", 0.01 if run is hangs else bench.HANGS_S)
    assert judge(Attack("a", "b", run, control), 1).outcome is outcome


def test_an_attack_that_cannot_be_run_says_why() -> None:
    assert judge(Attack("a", "b", cannot, holds), 1).measured == "it needs root"
