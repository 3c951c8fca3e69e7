"""Each attack in a small form; `make attack` has them at full size."""

from pathlib import Path

import pytest

from tests.attacks.__main__ import ATTACKS
from tests.attacks.attack import Attack, Size

SHARE = 0.02


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_a_small_attack_breaks_no_bound(attack: Attack, tmp_path: Path) -> None:
    found = await attack.run(Size(tmp_path, SHARE))
    assert found.holds, f"{attack.bound}: {found.said}"
