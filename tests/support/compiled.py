"""The compiled packages, compiled once for all tests, and processes that run on them."""

import faulthandler
import importlib.util
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILED = (
    ("tests/flowguard/node",),
    ("tests/torture", "tests/flowguard/broker", "tests/flowguard/stores/rocks"),
    (
        "tests/flowguard/flow",
        "tests/flowguard/cluster",
        "tests/flowguard/codec",
        "tests/flowguard/routing",
        "tests/flowguard/session",
        "tests/fuzz",
    ),
)
"""Tests that run on the compiled packages, in three processes: each imports and collects once."""
CPU_S = 3_600
"""Processor time of one process: many times that of compiling, and of the tests of a package."""


@cache
def script() -> ModuleType:
    """What compiles."""
    spec = importlib.util.spec_from_file_location("compile_rooms", ROOT / "scripts" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def compiled_rooms() -> Path:
    """Return the folder that comes first on PYTHONPATH, made of the present sources.

    It is the one of `make serve`, so that neither compiles again for the other. Skips the test
    without a C compiler.
    """
    if (why := script().missing()) is not None:
        pytest.skip(why)
    run("scripts/compile.py")
    return ROOT / ".compiled"


def run(*words: str, rooms: Path | None = None, **environment: str) -> str:
    """Return the output of Python with these arguments, on the compiled packages in `rooms`.

    The process and its children end before it returns. There is no limit in time, because on a busy
    machine that would limit the work of others: a process that spins ends by its processor time.
    """
    faulthandler.cancel_dump_traceback_later()  # pytest's own limit for a test, in time
    clean = {name: text for name, text in os.environ.items() if name != "FLOWGUARD_PURE"}
    if rooms is not None:
        environment["PYTHONPATH"] = str(rooms)
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU_S, CPU_S))
        try:
            output, _ = process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-8_000:]
    return output
