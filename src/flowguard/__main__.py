"""`python -m flowguard` runs the rooms that it finds first; so does the command `flowguard`, but in
a checkout, where it prefers the compiled ones."""

import os
import sys

from flowguard import build


def main() -> None:
    """Run the command; in a checkout on the compiled rooms if they are those of its sources.

    FLOWGUARD_PURE=1 keeps to pure Python. What was installed has the rooms that it was built with.
    """
    rooms = build.CHECKOUT / build.ROOMS
    if rooms.is_dir() and not os.environ.get("FLOWGUARD_PURE"):
        if build.is_up_to_date(build.CHECKOUT):
            path = os.pathsep.join([str(rooms), *filter(None, [os.environ.get("PYTHONPATH")])])
            # -P: the current directory stays off the path, as for any installed command.
            command = [sys.executable, "-P", "-m", "flowguard", *sys.argv[1:]]
            os.execve(sys.executable, command, os.environ | {"PYTHONPATH": path})
        if "serve" in sys.argv[1:2]:
            sys.stderr.write(
                f"{rooms} is not of these sources: going on in pure Python, at half the speed; "
                "make compile, or FLOWGUARD_PURE=1 if that is what you want\n"
            )
    run()


def run() -> None:
    """Run the command on the rooms that are first on the path."""
    from flowguard.cli import app  # Takes a third of a second: not before it is known which.

    app(prog_name="flowguard")


if __name__ == "__main__":
    run()
