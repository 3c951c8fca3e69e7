"""The compiled rooms that a target needs, and itself, counting the branches that it is after.

A fuzzer looks through all counters after each input, so only functions that the target is after are
counted: 160,000 counters, those of everything that is compiled, cost more than the input itself.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "flowguard"
WORK = ROOT / ".fuzz"
COVERAGE = "-fsanitize-coverage=inline-8bit-counters,pc-table"
HARNESS: Final = ("tests/fuzz/streams.py",)
COMPILED: Final = {
    "decode": ("types.py", "errors.py", "codec", *HARNESS, "tests/fuzz/decode.py"),
    "converse": (
        *("types.py", "records.py", "errors.py", "codec", "cluster", "flow"),
        *("session", "routing", "node"),
        *("stores/memory.py", *HARNESS, "tests/support/stage.py", "tests/fuzz/converse.py"),
    ),
}
COUNTED: Final = {
    "decode": ("codec",),
    "converse": ("codec", "flow", "session", "routing", "node"),
}
"""The packages whose branches count."""


def rooms(target: str) -> Path:
    """The folder that comes first on PYTHONPATH; compiles into it what has changed since."""
    folder = WORK / target / "rooms"
    if shutil.which("clang") is None:
        raise SystemExit("no clang here; Debian, Ubuntu: apt-get install clang")
    sources = [*PACKAGE.rglob("*.py"), ROOT / "scripts" / "compile.py", Path(__file__)]
    sources += [ROOT / name for name in COMPILED[target] if name.startswith("tests/")]
    newest_s = max(path.stat().st_mtime for path in sources)
    if folder.exists() and folder.stat().st_mtime > newest_s:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    allowed = folder.with_name("counted.txt")
    allowed.write_text("".join(f"{line}\n" for line in ("src:*", *functions(target))))
    flags = f"-g0 {COVERAGE} -fsanitize-coverage-allowlist={allowed}"
    tools = {"CC": "clang", "LDSHARED": "clang -shared", "CFLAGS": flags}
    command = [sys.executable, str(ROOT / "scripts" / "compile.py"), str(folder)]
    subprocess.run([*command, *COMPILED[target]], env=os.environ | tools, check=True)
    folder.touch()
    return folder


def functions(target: str) -> list[str]:
    """As mypyc names them, for clang."""
    modules = {path.stem for room in COUNTED[target] for path in (PACKAGE / room).rglob("*.py")}
    return [f"fun:CPyDef_*{module}___*" for module in sorted(modules - {"__init__"})]
