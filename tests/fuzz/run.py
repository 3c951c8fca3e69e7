"""The process that fuzzes: `python -m tests.fuzz.run TARGET [OPTIONS OF LIBFUZZER] [FILES]`.

With the compiled rooms of `.fuzz` first on PYTHONPATH: they need the counters of libFuzzer, which
are there for others once it runs. So the target is imported with its first input.
"""

import os
import sys
from collections.abc import Callable

import atheris

targets: list[Callable[[bytes], None]] = []


def run_once(data: bytes) -> None:
    if not targets:
        sys.setdlopenflags(os.RTLD_NOW)
        from flowguard.codec import decoder
        from tests.fuzz import targets as module

        print(f"decoder: {decoder.__file__}", flush=True)
        targets.append(getattr(module, name))
    targets[0](data)


name = sys.argv.pop(1)
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
atheris.Setup(sys.argv, run_once)
atheris.Fuzz()
