"""The process that fuzzes: `python -P tests/fuzz/run.py TARGET [OPTIONS OF LIBFUZZER] [FILES]`.

With the rooms that `build` has compiled first on PYTHONPATH: they need the counters of libFuzzer,
which are there for others once it runs. So the target is imported with its first input.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import atheris

MEMORY_BYTES = 1 << 30
COUNT_EVERY = 1_000
"""Inputs."""
targets: list[Callable[[bytes], None]] = []


def run_once(data: bytes) -> None:
    if not targets:
        sys.setdlopenflags(os.RTLD_NOW)
        module = importlib.import_module(f"tests.fuzz.{name}")
        assert module.__file__.endswith(".so"), f"not compiled: {module.__file__}"
        targets.append(counted(module) if name == "converse" else module.once)
        gc.freeze()
    targets[0](data)


def counted(converse: ModuleType) -> Callable[[bytes], None]:
    """Says how many conversations there were: libFuzzer counts inputs, and allows no last word."""
    from tests.fuzz.streams import ANOTHER, HEAD_BYTES

    share_bounds(converse.SETTINGS)
    inputs = conversations = 0

    def once(data: bytes) -> None:
        nonlocal inputs, conversations
        converse.once(data)
        inputs += 1
        conversations += min(1 + data.count(ANOTHER, HEAD_BYTES), converse.STRANGERS_MAX)
        if inputs % COUNT_EVERY == 0:
            print(f"conversations: {conversations}", flush=True)

    return once


def share_bounds(settings: object) -> None:
    """All nodes of this process have the same settings: what follows is worked out once.

    Otherwise it costs as much as a short conversation, a sixth of all.
    """
    from flowguard.bounds import Bounds
    from flowguard.config import Settings

    assert isinstance(settings, Settings)
    bounds = Bounds.of(settings, MEMORY_BYTES)

    def of(asked: Settings, memory_bytes: int) -> Bounds:
        assert asked is settings
        assert memory_bytes == MEMORY_BYTES
        return bounds

    setattr(Bounds, "of", of)  # noqa: B010


name = sys.argv.pop(1)
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
atheris.Setup(sys.argv, run_once)
atheris.Fuzz()
