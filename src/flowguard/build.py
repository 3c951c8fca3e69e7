"""The running build, and whether a checkout's compiled packages match its sources.

`scripts/compile.py` leaves a digest of all that it compiled beside the result. A program that uses
the result compares the digest. So it detects every change of the sources, whatever their times.
"""

import sysconfig
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
CHECKOUT: Final = PACKAGE.parents[1]
"""Root of the checkout, if this package is its `src/flowguard`."""
ROOMS: Final = ".compiled"
"""Folder of a checkout with the compiled package."""
STAMP: Final = "ready"
"""File in it with the digest of its sources."""
SCRIPT: Final = "scripts/compile.py"


def name() -> str:
    """Return the name of the running build; imports nothing of it."""
    spec = find_spec("flowguard.types")
    assert spec is not None
    return "pure Python" if str(spec.origin).endswith(".py") else "compiled"


def digest(checkout: Path) -> str:
    """Return a digest of the packages' sources, the compile script, and the interpreter."""
    seen = sha256(str(sysconfig.get_config_var("EXT_SUFFIX")).encode())
    packages = checkout / "src" / "flowguard", checkout / "broker_adapter"
    sources = (path for package in packages for path in sorted(package.rglob("*.py")))
    for path in (checkout / SCRIPT, *sources):
        seen.update(b"\0%s\0" % str(path.relative_to(checkout)).encode())
        seen.update(sha256(path.read_bytes()).digest())
    return seen.hexdigest()


def is_up_to_date(checkout: Path) -> bool:
    """Return True if a checkout has compiled packages that match its sources."""
    try:
        return (checkout / ROOMS / STAMP).read_text() == digest(checkout)
    except FileNotFoundError:
        return False
