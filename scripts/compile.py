"""Compile the rooms from the sockets down to the store with mypyc, into a folder of their own.

    python scripts/compile.py [FOLDER]    # default: .compiled; needs a C compiler, half a minute

The result is the whole package `flowguard`, the sans-IO rooms beside their sources as extension
modules: with the folder first on PYTHONPATH the same program runs faster. Nothing depends on it.

One thing is changed on the way: `slots=True` goes. It makes `dataclass` build a second class, which
mypyc does not compile; mypyc's own classes have slots anyway.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "flowguard"
MODULES = ("types.py", "records.py", "errors.py", "broker/link.py", "broker/reactor.py")
ROOMS = ("codec", "flow", "session", "routing", "node", "stores/rocks")
PLAIN = ("stores/rocks/engine.py", "stores/rocks/store.py")
"""Stay as they are: they talk to a driver whose types say little."""
OPTIMISATION = {"MYPYC_OPT_LEVEL": "1", "CFLAGS": "-g0"}
"""As fast as level 3 (181k, 182k QoS 1 messages per CPU second), in less than half the time."""
SLOTS = re.compile(r"slots=True(, )?")


def compile_into(folder: Path) -> None:
    """Replace `folder` by a freshly compiled package; leaves it alone when that fails."""
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler here; Debian, Ubuntu: apt-get install gcc python3-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise SystemExit("no Python.h here; Debian, Ubuntu: apt-get install python3-dev")
    work = folder.with_name(folder.name + ".new")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PACKAGE, work / "flowguard", ignore=shutil.ignore_patterns("__pycache__"))
    package = work / "flowguard"
    sources = [package / name for name in MODULES]
    plain = {package / name for name in PLAIN}
    for room in ROOMS:
        sources += [path for path in sorted((package / room).glob("*.py")) if path not in plain]
    for source in sources:
        source.write_text(SLOTS.sub("", source.read_text()))
    (work / "mypy.ini").write_text("[mypy]\nplugins = pydantic.mypy\nmypy_path = .\n")
    command = [sys.executable, "-m", "mypyc", *(str(path.relative_to(work)) for path in sources)]
    environment = OPTIMISATION | os.environ
    result = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise SystemExit(f"mypyc failed:\n{result.stdout[-4_000:]}\n{result.stderr[-4_000:]}")
    shutil.rmtree(work / "build")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".compiled")
