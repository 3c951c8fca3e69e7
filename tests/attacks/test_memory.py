"""The small form of the attacks on memory: the same judgements, fewer attackers."""

import pytest

from tests.attacks.memory import (
    MIB,
    Attack,
    dead_readers,
    half_connects,
    half_publishes,
    judge,
    retained,
    unacknowledged,
)

SMALL = {
    "half packets": Attack(half_publishes, 150, 900_000),
    "half CONNECTs": Attack(half_connects, 2_000, 60_000),
    "unacknowledged messages": Attack(unacknowledged, 30, 10_000),
    "dead readers": Attack(dead_readers, 50, 20_000),
    "retained messages": Attack(retained, 8_000, 20_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", SMALL.values(), ids=SMALL)
def test_memory_stays_within_its_limit_and_nobody_else_is_hit(attack: Attack) -> None:
    verdict = judge(attack, limit_bytes=100 * MIB)
    assert verdict.is_good, str(verdict)
