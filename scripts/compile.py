"""Compile the rooms from the sockets down to the store with mypyc, into a folder of their own.

    python scripts/compile.py                       # .compiled, where it is not up to date
    python scripts/compile.py FOLDER SOURCE ...     # needs a C compiler, a minute or two

SOURCE is a file or folder of the package, or, beginning with `tests/` or `broker_adapter/`, a file
beside it, where it is not the usual ones that are to be compiled.

The result is the whole packages `flowguard` and `broker_adapter`, the hot rooms beside their
sources as extension modules: with the folder first on PYTHONPATH the same program runs faster.
Nothing depends on it.
The sources are compiled as they stand. What they have for the compiler's sake:

* Dataclasses that are made per message or per connection write out their `__init__`, which
  `dataclass` would make at run time, in Python: 568k -> 735k QoS 1 messages per CPU second.
* `mypyc_attr(acyclic=True)` is on what there are many of while messages are in process, and what is
  never part of a cycle: the garbage collector, which would stop the loop for 17 to 25 ms to look
  through it, is not told of it.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from flowguard import build  # noqa: E402  an isolated build has it nowhere else

PACKAGE = ROOT / "src" / "flowguard"
ADAPTER = ROOT / "broker_adapter"
MODULES = (
    "types.py",
    "records.py",
    "errors.py",
    "broker/clock.py",
    "broker/layer.py",
    "broker/layer_gate.py",
    "broker/link.py",
    "broker/listeners.py",
    "broker/proxied.py",
    "broker/reactor.py",
    "broker/socket_set.py",
    "broker/tls.py",
    "broker/websocket.py",
    "stores/entries.py",
    "stores/kafka/plan.py",
    "stores/kafka/queue.py",
    "stores/kafka/window.py",
    "stores/messages.py",
    "stores/redis/changes.py",
    "stores/redis/keys.py",
    "stores/redis/packing.py",
    "stores/redis/queues.py",
    "stores/redis/values.py",
    "stores/rows.py",
)
ROOMS = ("access", "codec", "flow", "session", "routing", "node", "stores/log", "stores/rocks")
PROXY = tuple(
    f"broker_adapter/proxy_{part}.py"
    for part in (
        "connect",
        "core",
        "frames",
        "host",
        "outgoing",
        "packets",
        "pair",
        "reactor",
        "states",
        "upstream",
    )
)
"""Of the package beside it: where every packet that a proxy forwards comes through."""
USUAL = (*MODULES, *ROOMS, *PROXY)
PLAIN = (
    "access/rules_toml.py",
    "stores/rocks/driver_errors.py",
    "stores/rocks/engine.py",
    "stores/rocks/store.py",
)
"""Stay as they are: they talk to a driver whose types say little, or are made at run time."""
EXTRAS = ("websockets",)
"""What compiled files import and not everybody has installed. To the compiler it is Any, installed
or not: the rooms are the same."""
OPTIMISATION = {"MYPYC_OPT_LEVEL": "1", "CFLAGS": "-g0"}
"""As fast as level 3 (181k, 182k QoS 1 messages per CPU second), in less than half the time."""
LOOK_S = 0.5
SAYS = "compiling with mypyc: half a minute to two, this once (FLOWGUARD_PURE=1 goes without) ..."


def missing() -> str | None:
    """What this system lacks to compile anything; None: nothing."""
    if shutil.which("cc") is None:
        return "no C compiler here; Debian, Ubuntu: apt-get install gcc python3-dev"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h here; Debian, Ubuntu: apt-get install python3-dev"
    return None


def up_to_date() -> Path:
    """The folder with the usual rooms, compiled now unless they are those of these sources."""
    if not build.is_up_to_date(ROOT):
        print(SAYS, file=sys.stderr)
        compile_into(ROOT / build.ROOMS)
    return ROOT / build.ROOMS


def compile_into(folder: Path, names: Sequence[str] = USUAL) -> None:
    """Replace `folder` by a freshly compiled package; leaves it alone when that fails."""
    if (what := missing()) is not None:
        raise SystemExit(what)
    stamp = build.digest(ROOT)
    tidy(folder)
    prefix = f"{folder.name}.{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as name:
        work = Path(name) / "rooms"
        for package in (PACKAGE, ADAPTER):
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, work / package.name, ignore=unwanted)
        sources = [str(path.relative_to(work)) for path in sources_of(names, work)]
        (work / "mypy.ini").write_text(settings())
        with tempfile.TemporaryFile("w+") as output:
            with subprocess.Popen(
                [sys.executable, "-m", "mypyc", *sources],
                cwd=work,
                env=OPTIMISATION | os.environ,
                stdout=output,
                stderr=output,
            ) as process:
                watch(process, work / "build")
            if process.returncode:
                output.seek(0)
                raise SystemExit(f"mypyc failed:\n{output.read()[-8_000:]}")
        shutil.rmtree(work / "build")
        (work / build.STAMP).write_text(stamp)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)


def settings() -> str:
    """The configuration of mypy. It follows imports into files that are not compiled, too, which
    import other extras; `make lint` looks whether each is there."""
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in EXTRAS)
    return (
        f"[mypy]\nplugins = pydantic.mypy\nmypy_path = .\nignore_missing_imports = True\n{skipped}"
    )


def tidy(folder: Path) -> None:
    """Delete what those left beside it that were killed while they compiled."""
    for path in folder.parent.glob(f"{folder.name}.[0-9]*.*"):
        if not Path("/proc", path.name.split(".")[-2]).exists():
            shutil.rmtree(path, ignore_errors=True)


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
        elif name.startswith(ADAPTER.name):
            yield work / name
        elif name.endswith(".py"):
            yield package / name
        else:
            yield from (path for path in sorted((package / name).glob("*.py")) if path not in plain)


def watch(process: "subprocess.Popen[bytes]", build: Path) -> None:
    """Show what mypyc is at until it is done: on a terminal all the time, else a line per step."""
    # Not there when a wheel without compiled rooms is built.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
    if sys.argv[1:]:
        compile_into(Path(sys.argv[1]), sys.argv[2:] or USUAL)
    else:
        up_to_date()
