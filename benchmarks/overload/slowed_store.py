"""Memory stores of known capacity in a broker with several workers, of which one can be slowed.

`site/sitecustomize.py` calls `install` in each process of the broker.
"""

import os
from pathlib import Path
from typing import Any, Final, cast

from flowguard.app.stores import OPENERS
from flowguard.app.workers.seat import name_of
from flowguard.config import Settings
from flowguard.stores import Store

from .store import LimitedStore

SITE: Final = Path(__file__).resolve().parent / "site"
TRIGGER: Final = "FLOWGUARD_BENCH_SLOWED"
"""Variable with the path of a file; while it exists, the store of one worker is slower."""
SLOWED: Final = name_of(1)
FACTOR: Final = 10.0
COMMIT_S: Final = 0.004
MESSAGE_S: Final = 0.000_1


def _open(settings: Settings, data: Path, on_wait: object) -> Store:
    trigger = Path(os.environ[TRIGGER])

    def slowness() -> float:
        return FACTOR if data.name == SLOWED and trigger.exists() else 1.0

    return LimitedStore(COMMIT_S, MESSAGE_S, slowness)


def install() -> None:
    """Let `store.kind` memory be such a store."""
    cast("dict[str, Any]", OPENERS)["memory"] = _open
