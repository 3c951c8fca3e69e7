"""`python -m flowguard` runs the first packages on the path. The command `flowguard` does the same,
but in a checkout it prefers the compiled packages.
"""

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
"""Modules stay, and connections make almost no garbage cycles. A scan of the imported modules takes
a tenth of a command's start, and a scan of a million connections is a pause. A scan of 10,000 new
objects takes 0.5 ms; of 100,000, which fit in no cache, 9 ms."""


def main() -> None:
    """Run the command; in a checkout with the compiled packages if they match its sources.

    FLOWGUARD_PURE=1 selects pure Python. An installed flowguard has the packages that it was built
    with.
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
    """Import from this folder from now on, in this process and in programs that it starts."""
    sys.path.insert(0, str(rooms))
    others = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(rooms), *others])
    for name in [name for name in sys.modules if name.partition(".")[0] == "flowguard"]:
        del sys.modules[name]


def run() -> None:
    """Run the command with the first packages on the path."""
    _begin()
    gc.set_threshold(*GC_THRESHOLDS)
    from flowguard.cli import app  # Late, because it takes a tenth of a second.

    streams.run(partial(app, prog_name="flowguard"))


if __name__ == "__main__":
    run()
