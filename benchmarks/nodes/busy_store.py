"""Stores on Redis of known capacity: the shards of a node share it, as they would share a machine.

`site/sitecustomize.py` calls `install` in each process of a node. The store of a node is like a
disk behind a network. A commit takes at least `LEAST_S`. For `MESSAGE_S` per durable message and
`SESSION_S` per stored session it excludes other commits of the node. A session is stored when its
client connects, and a minute after its connection has ended.
"""

import os
import time
from collections.abc import Sequence
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final, cast

from flowguard.app.stores import OPENERS
from flowguard.config import Settings
from flowguard.records import Append, PutSession, StoreOp
from flowguard.stores import Fenced, Store

SITE: Final = Path(__file__).resolve().parent / "site"
LANE: Final = "FLOWGUARD_BENCH_LANE"
"""Variable with the path of a file, one for each node; while it exists, its commits take time."""
LEAST_S: Final = 0.05
MESSAGE_S: Final = 0.001
SESSION_S: Final = 0.003

_open = OPENERS["redis"]


def _open_busy(settings: Settings, data: Path, on_wait: Any) -> Store:
    store = _open(settings, data, on_wait)
    path, commit = os.environ[LANE], store.commit

    def commit_in_turn(ops: Sequence[StoreOp]) -> Fenced:
        began_s = time.monotonic()
        fenced = commit(ops)
        took_s = MESSAGE_S * sum(op.__class__ is Append for op in ops)
        took_s += SESSION_S * sum(op.__class__ is PutSession for op in ops)
        if took_s:
            try:
                lane = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return fenced
            flock(lane, LOCK_EX)
            time.sleep(took_s)
            os.close(lane)  # This unlocks it.
            time.sleep(max(0.0, began_s + LEAST_S - time.monotonic()))
        return fenced

    store.commit = commit_in_turn  # type: ignore[method-assign]
    return store


def install() -> None:
    """Let `store.kind` redis be such a store."""
    cast("dict[str, Any]", OPENERS)["redis"] = _open_busy
