"""`python -m flowguard` runs the rooms that it finds first; so does the command `flowguard`, but in
a checkout, where it prefers the compiled ones."""

import gc
import os
import runpy
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from flowguard import build, streams

GC_THRESHOLDS = (10_000, 500, 100)
"""Modules stay, and conversations make no garbage cycles to speak of: scanning what is imported is
a tenth of a command's start, scanning a million conversations is a pause. To look through 10,000
new objects takes half a millisecond, through 100,000, which are in no cache, 9."""


def main() -> None:
    """Run the command; in a checkout on the compiled rooms if they are those of its sources.

    FLOWGUARD_PURE=1 keeps to pure Python. What was installed has the rooms that it was built with.
    """
    _begin()
    rooms = build.CHECKOUT / build.ROOMS
    if rooms.is_dir() and not os.environ.get("FLOWGUARD_PURE"):
        if build.is_up_to_date(build.CHECKOUT):
            _prefer(rooms)
            runpy.run_module("flowguard", run_name="__main__")
            return
        if "serve" in sys.argv[1:2]:
            with suppress(OSError):  # Standard error may be full or closed.
                sys.stderr.write(
                    f"{rooms} is older than the sources: running in pure Python, at half the speed;"
                    " make compile, or FLOWGUARD_PURE=1 if that is what you want\n"
                )
    run()


def _begin() -> None:
    """Prepare standard streams and signals before anything else; safe to repeat."""
    streams.open_closed()
    if sys.argv[1:2] in (
        ["serve"],
        ["proxy"],
        ["worker"],
    ):  # Until flowguard.cli.signals has handlers.
        held = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, held)


def _prefer(rooms: Path) -> None:
    """Import from these rooms from now on, here and in programs that are started from here."""
    sys.path.insert(0, str(rooms))
    others = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(rooms), *others])
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowguard"]:
        del sys.modules[name]


def run() -> None:
    """Run the command on the rooms that are first on the path."""
    _begin()
    gc.set_threshold(*GC_THRESHOLDS)
    from flowguard.cli import app  # Takes a tenth of a second: not before it is known which.

    streams.run(partial(app, prog_name="flowguard"))


if __name__ == "__main__":
    run()
