"""The build that runs, and whether a checkout's compiled rooms are those of its sources.

`scripts/compile.py` leaves a digest of all that it compiled beside the result. Who runs the result
compares it: no file of the sources can change without its being seen, whatever its time says.
"""

import sysconfig
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
CHECKOUT: Final = PACKAGE.parents[1]
"""Where a checkout begins, if this package is its `src/flowguard`."""
ROOMS: Final = ".compiled"
"""The folder of a checkout that holds the compiled package."""
STAMP: Final = "ready"
"""The file in it that holds the digest of its sources."""
SCRIPT: Final = "scripts/compile.py"


def name() -> str:
    """The build that is running; imports nothing of it."""
    spec = find_spec("flowguard.types")
    assert spec is not None
    return "pure Python" if str(spec.origin).endswith(".py") else "compiled"


def digest(checkout: Path) -> str:
    """Changes with the sources of the packages, with what compiles them, and the interpreter."""
    seen = sha256(str(sysconfig.get_config_var("EXT_SUFFIX")).encode())
    packages = checkout / "src" / "flowguard", checkout / "broker_adapter"
    sources = (path for package in packages for path in sorted(package.rglob("*.py")))
    for path in (checkout / SCRIPT, *sources):
        seen.update(b"\0%s\0" % str(path.relative_to(checkout)).encode())
        seen.update(sha256(path.read_bytes()).digest())
    return seen.hexdigest()


def is_up_to_date(checkout: Path) -> bool:
    """Whether its compiled rooms are those of its sources; False, too, where there are none."""
    try:
        return (checkout / ROOMS / STAMP).read_text() == digest(checkout)
    except FileNotFoundError:
        return False
