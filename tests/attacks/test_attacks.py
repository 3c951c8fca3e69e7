"""Each attack in a small form; `make attack` has them at full size."""

from pathlib import Path

import pytest

from tests.attacks.attack import Attack, CannotRun, Size
from tests.attacks.attacks import ATTACKS

SHARE = 0.02
TESTED = [attack for attack in ATTACKS if attack.is_tested]


@pytest.mark.slow
@pytest.mark.parametrize("attack", TESTED, ids=lambda attack: attack.name)
async def test_a_small_attack_breaks_no_bound(attack: Attack, tmp_path: Path) -> None:
    try:
        found = await attack.run(Size(tmp_path, SHARE))
    except CannotRun as reason:
        pytest.skip(str(reason))
    assert found.holds, f"{attack.bound}: {found.said}"
