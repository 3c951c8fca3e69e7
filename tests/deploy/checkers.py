"""Programs that check the files of `deploy/`; scripts/setup-test-peers.sh installs them."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import HANG_S

FOLDER: Final = Path(__file__).parents[2] / ".peers" / "deploy"


def checked(program: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run one of them to its end. Skips if they are not installed."""
    if not (FOLDER / "checkers").exists():
        pytest.skip(f"no {program} here: scripts/setup-test-peers.sh installs it")
    return subprocess.run(
        [FOLDER / "bin" / program, *words],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
