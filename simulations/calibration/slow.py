"""`flowguard serve` with a store that can stop: `python slow.py STORE serve ...`.

STORE is `rocks`, or `slow` for a store in memory with fixed delays. A slow commit takes as long on
a busy machine as on a quiet one. So a check with it judges the model alone.

A commit that begins after SIGUSR1 waits for SIGUSR2, as on a disk that does not answer. This file
imports flowguard only, so that the Python of another checkout can run it.
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast, final

from flowguard.__main__ import run
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore, Store

COMMIT_S: Final = 0.005
OP_S: Final = 0.000_01


@final
class StoppableStore:
    """A store in a wrapper: commits wait for an event, and may take a fixed time more."""

    immediate = False

    def __init__(self, store: Store, answers: threading.Event, *, slow: bool = False) -> None:
        self._store = store
        self._answers = answers
        self._is_slow = slow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self._answers.wait()
        fenced = self._store.commit(ops)
        if self._is_slow:
            time.sleep(COMMIT_S + OP_S * len(ops))
        return fenced


def main(kind: str) -> None:
    answers = threading.Event()
    answers.set()
    signal.signal(signal.SIGUSR1, lambda *_: answers.clear())
    signal.signal(signal.SIGUSR2, lambda *_: answers.set())
    openers = _openers()
    open_rocks = openers["rocks"]

    def opened(settings: Any, data: Path, on_wait: Any) -> Store:
        slow = kind == "slow"
        store = MemoryStore() if slow else open_rocks(settings, data, on_wait)
        return cast(Store, StoppableStore(store, answers, slow=slow))

    openers["rocks"] = opened
    run()


def _openers() -> dict[str, Any]:
    """The functions that open a store, by its kind."""
    try:
        stores = import_module("flowguard.app.stores")
    except ModuleNotFoundError:
        stores = import_module("flowguard.broker.stores")  # In checkouts before November 2026.
    return cast("dict[str, Any]", stores.OPENERS)


if __name__ == "__main__":
    main(sys.argv.pop(1))
