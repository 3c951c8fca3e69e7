"""Compile the rooms from the sockets down to the store with mypyc, into a folder of their own.

    python scripts/compile.py [FOLDER [SOURCE ...]]    # needs a C compiler, a minute or two

FOLDER is `.compiled` unless said; SOURCE a file or folder of the package, or, beginning with
`tests/`, a file beside it, where it is not the usual ones that are to be compiled.

The result is the whole package `flowguard`, the sans-IO rooms beside their sources as extension
modules: with the folder first on PYTHONPATH the same program runs faster. Nothing depends on it.

Three things are changed on the way:

* `slots=True` goes: it makes `dataclass` build a second class, which mypyc does not compile; its
  own classes have slots anyway.
* The `__init__` that `dataclass` would make at run time, in Python, is written out, so that it is
  compiled, too: 568k -> 735k QoS 1 messages per CPU second.
* Most of what there is per message in process is kept from the garbage collector, which would stop
  the loop for 17 to 25 ms to look through it.
"""

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "flowguard"
MODULES = (
    "types.py",
    "records.py",
    "errors.py",
    "broker/link.py",
    "broker/listeners.py",
    "broker/reactor.py",
)
ROOMS = ("codec", "flow", "session", "routing", "node", "stores/rocks")
USUAL = (*MODULES, *ROOMS)
PLAIN = ("stores/rocks/engine.py", "stores/rocks/store.py", "stores/rocks/tolerant.py")
"""Stay as they are: they talk to a driver whose types say little."""
OPTIMISATION = {"MYPYC_OPT_LEVEL": "1", "CFLAGS": "-g0"}
"""As fast as level 3 (181k, 182k QoS 1 messages per CPU second), in less than half the time."""
LOOK_S = 0.5
SLOTS = re.compile(r"slots=True(, )?")
ACYCLIC = {
    "types.py": ("Properties", "Publish", "SubscriptionOptions"),
    "records.py": (
        *("Delivery", "QueueEntry", "Append", "Sent", "Release", "Settle"),
        *("PutInbound", "DropInbound", "PutRetained", "DropRetained"),
    ),
    "codec/packets.py": ("Puback", "Pubrec", "Pubrel", "Pubcomp"),
}
"""What there are many of while messages are in process, and what is never part of a cycle: the
garbage collector is not told of it, and need not look through it."""


def with_constructors(source: str) -> str:
    """Write out the `__init__` of each plain dataclass: no base, no factory, no keyword of `field`
    but `default`."""
    lines = source.splitlines()
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    for node in sorted(classes, key=lambda node: node.lineno, reverse=True):
        decorator = next((d for d in node.decorator_list if _is_call_of(d, "dataclass")), None)
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        fields = [_field(item) for item in node.body if isinstance(item, ast.AnnAssign)]
        if decorator is None or node.bases or methods & {"__init__", "__post_init__"}:
            continue
        if not fields or None in fields or "frozen=True" in ast.unparse(decorator):
            continue
        names = [ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)]
        init = [f"    def __init__(self, {', '.join(map(str, fields))}) -> None:"]
        init += [f"        self.{name} = {name}" for name in names]
        assert node.end_lineno is not None
        lines[node.end_lineno : node.end_lineno] = ["", *init]
        at = decorator.lineno - 1
        lines[at] = lines[at].replace("@dataclass(", "@dataclass(init=False, ")
    return "\n".join(lines) + "\n"


def without_collection(source: str, names: Sequence[str]) -> str:
    """Keep instances of these classes out of the garbage collector's lists."""
    lines = source.splitlines()
    body = ast.parse(source).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in sorted((classes[name] for name in names), key=lambda n: n.lineno, reverse=True):
        first = min(each.lineno for each in (node, *node.decorator_list))
        lines.insert(first - 1, "@mypyc_attr(acyclic=True)")
    imports = next(n for n in body if isinstance(n, ast.Import | ast.ImportFrom))
    imported = ("from typing import TYPE_CHECKING", "", "if TYPE_CHECKING:")
    lines[imports.lineno - 1 : imports.lineno - 1] = [
        *imported,
        "    from mypy_extensions import mypyc_attr",  # Nothing needs it at run time.
    ]
    return "\n".join(lines) + "\n"


def _is_call_of(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _field(item: ast.AnnAssign) -> str | None:
    """A field as a parameter; None: it cannot be one."""
    parameter = f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}"
    default = item.value
    if _is_call_of(default, "field"):
        assert isinstance(default, ast.Call)
        if [keyword.arg for keyword in default.keywords] != ["default"]:
            return None
        default = default.keywords[0].value
    return parameter if default is None else f"{parameter} = {ast.unparse(default)}"


def compile_into(folder: Path, names: Sequence[str] = USUAL) -> None:
    """Replace `folder` by a freshly compiled package; leaves it alone when that fails."""
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler here; Debian, Ubuntu: apt-get install gcc python3-dev")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise SystemExit("no Python.h here; Debian, Ubuntu: apt-get install python3-dev")
    work = folder.with_name(folder.name + ".new")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(PACKAGE, work / "flowguard", ignore=shutil.ignore_patterns("__pycache__"))
    package = work / "flowguard"
    sources = list(sources_of(names, work))
    for source in sources:
        source.write_text(SLOTS.sub("", with_constructors(source.read_text())))
    for name, classes in ACYCLIC.items():
        if (source := package / name) in sources:
            source.write_text(without_collection(source.read_text(), classes))
    (work / "mypy.ini").write_text("[mypy]\nplugins = pydantic.mypy\nmypy_path = .\n")
    command = [sys.executable, "-m", "mypyc", *(str(path.relative_to(work)) for path in sources)]
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            command, cwd=work, env=OPTIMISATION | os.environ, stdout=output, stderr=output
        ) as process:
            watch(process, work / "build")
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"mypyc failed:\n{output.read()[-8_000:]}")
    shutil.rmtree(work / "build")
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def sources_of(names: Sequence[str], work: Path) -> Iterator[Path]:
    """The files in `work` that `names` stand for; copies those that do not lie in the package."""
    package = work / "flowguard"
    plain = {package / name for name in PLAIN}
    for name in names:
        if name.startswith("tests/"):
            path = Path(name)
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            for each in (path, *(room / "__init__.py" for room in path.parents[:-1])):
                shutil.copy(ROOT / each, work / each)
            yield work / path
        elif name.endswith(".py"):
            yield package / name
        else:
            yield from (path for path in sorted((package / name).glob("*.py")) if path not in plain)


def watch(process: "subprocess.Popen[bytes]", build: Path) -> None:
    """Show what mypyc is at until it is done: on a terminal all the time, else a line per step."""
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), SpinnerColumn(), TimeElapsedColumn()
    live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    said = ""
    with live:
        task = live.add_task("", total=None)
        while process.poll() is None:
            step, how_far = progress(build)
            live.update(task, description=f"{step} {how_far}")
            if step != said and live.disable:
                console.print(f"{live.tasks[0].elapsed:5.0f} s  {step}")
            said = step
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)


def progress(build: Path) -> tuple[str, str]:
    """The step that mypyc is at, by the files that it has written, and how far it is."""
    sources = len(list(build.rglob("*.c")))
    if not sources:
        return "checking types and writing C", ""
    objects = len(list(build.rglob("*.o")))
    if not objects:
        return "compiling the rooms, all in one", ""
    return "compiling what opens each of them", f"{objects} of {sources}"


if __name__ == "__main__":
    compile_into(
        Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".compiled", sys.argv[2:] or USUAL
    )
