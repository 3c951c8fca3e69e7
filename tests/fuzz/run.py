"""The process that fuzzes: `python -P tests/fuzz/run.py TARGET [OPTIONS OF LIBFUZZER] [FILES]`.

With the rooms that `build` has compiled first on PYTHONPATH: they need the counters of libFuzzer,
which are there for others once it runs. So the target is imported with its first input.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable

import atheris

MEMORY_BYTES = 1 << 30
targets: list[Callable[[bytes], None]] = []


def run_once(data: bytes) -> None:
    if not targets:
        sys.setdlopenflags(os.RTLD_NOW)
        module = importlib.import_module(f"tests.fuzz.{name}")
        assert module.__file__.endswith(".so"), f"not compiled: {module.__file__}"
        if name == "converse":
            share_bounds(module.SETTINGS)
        targets.append(module.once)
        gc.freeze()
    targets[0](data)


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
