"""Compile flowguard's hot packages with mypyc into `.compiled`, unless they are up to date.

    python scripts/compile.py                       # compile now; 2 to 5 minutes
    python scripts/compile.py --background          # start that at low priority and return
    python scripts/compile.py FOLDER [SOURCE ...]   # compile other sources into another folder

SOURCE is a file or folder of the package, or a file beside it in `tests/` or `broker_adapter/`.

The result is a copy of `flowguard` and `broker_adapter` with extension modules beside the sources.
With that folder first on PYTHONPATH the same program runs faster. Nothing depends on it.
The sources are compiled as they stand. Two habits in them exist for the compiler:

* Dataclasses that are made per message or per connection write out their `__init__`, which
  `dataclass` would make at run time, in Python: 568k -> 735k QoS 1 messages per CPU second.
* `mypyc_attr(acyclic=True)` marks classes with many instances that are never part of a cycle. The
  garbage collector skips them; otherwise it would stop the loop for 17 to 25 ms.
"""

import argparse
import contextlib
import fcntl
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
    "broker/layers/layer.py",
    "broker/layers/layer_gate.py",
    "broker/sockets/link.py",
    "broker/sockets/listeners.py",
    "broker/sockets/other_sockets.py",
    "broker/layers/proxied.py",
    "broker/sockets/reactor.py",
    "broker/sockets/socket_set.py",
    "broker/workers/node_tls.py",
    "broker/workers/pipes.py",
    "broker/workers/worker_addresses.py",
    "broker/workers/worker_ports.py",
    "broker/layers/tls.py",
    "broker/layers/websocket.py",
    "stores/clock.py",
    "stores/entries.py",
    "stores/kafka/plan.py",
    "stores/kafka/queue.py",
    "stores/kafka/window.py",
    "stores/messages.py",
    "stores/redis/changes.py",
    "stores/redis/keys.py",
    "stores/redis/connection/packing.py",
    "stores/redis/queues.py",
    "stores/redis/values.py",
    "stores/rows.py",
)
ROOMS = (
    "access",
    "codec",
    "cluster",
    "flow",
    "session",
    "routing",
    "node",
    "stores/log",
    "stores/rocks",
)
PROXY = tuple(
    f"broker_adapter/proxy/{part}.py"
    for part in (
        "connect",
        "core",
        "frames",
        "host",
        "life",
        "outgoing",
        "packets",
        "pair",
        "reactor",
        "states",
        "upstream",
    )
)
"""Files of the package `broker_adapter` that every forwarded packet passes."""
USUAL = (*MODULES, *ROOMS, *PROXY)
PLAIN = (
    "access/rules_toml.py",
    "stores/rocks/database/driver_errors.py",
    "stores/rocks/database/engine.py",
    "stores/rocks/store.py",
)
"""Files that stay in Python: their driver has few types, or they are generated at run time."""
EXTRAS = ("websockets",)
"""Optional packages that compiled files import. The compiler sees them as Any, installed or not, so
that the result is the same."""
OPTIMISATION = {"MYPYC_OPT_LEVEL": "1", "CFLAGS": "-g0"}
"""Level 1 gives the speed of level 3 (181k, 182k QoS 1 messages per CPU second) in less than half
the compile time."""
LOOK_S = 0.5
STARTED = "compiling with mypyc, once; 2 to 5 minutes (FLOWGUARD_PURE=1 skips it) ..."
LOG = ".compiled.log"
"""Output of a build in the background."""


def missing() -> str | None:
    """Return what this system lacks to compile, or None if it lacks nothing."""
    if shutil.which("cc") is None:
        return "no C compiler here; Debian, Ubuntu: apt-get install gcc python3-dev"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h here; Debian, Ubuntu: apt-get install python3-dev"
    return None


def up_to_date() -> Path:
    """Return the folder of the compiled build, compiling now if the sources have changed.

    A second caller waits for the first and compiles nothing.
    """
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not build.is_up_to_date(ROOT):
            print(STARTED, file=sys.stderr)
            compile_into(ROOT / build.ROOMS)
            print("done: the next start uses this build", file=sys.stderr)
    return ROOT / build.ROOMS


def compile_into(folder: Path, names: Sequence[str] = USUAL) -> None:
    """Replace `folder` by a freshly compiled package, or leave it unchanged on failure."""
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
    """Return mypy's configuration.

    mypy follows imports into files that are not compiled and that import other extras.
    `make lint` checks those imports.
    """
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in EXTRAS)
    return (
        f"[mypy]\nplugins = pydantic.mypy\nmypy_path = .\nignore_missing_imports = True\n{skipped}"
    )


def in_background() -> None:
    """Start a build at the lowest priority unless one is running or none is needed.

    The caller can serve in pure Python meanwhile. The next start finds the compiled build.
    """
    if os.environ.get("FLOWGUARD_PURE") or build.is_up_to_date(ROOT):
        return
    if (reason := missing()) is not None:
        print(f"running in pure Python, at half the speed: {reason}", file=sys.stderr)
        return
    folder, log = ROOT / build.ROOMS, ROOT / LOG
    tidy(folder)
    if not unfinished(folder):
        shutil.rmtree(folder, ignore_errors=True)  # It is of other sources: no start may use it.
        with log.open("w") as output:
            subprocess.Popen(
                ["nice", "-n", "19", sys.executable, __file__],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C ends the broker, not the build. In a session of its own the build would get
                # as much of a core as the broker: Linux compares priorities within a session.
                process_group=0,
            )
    print(
        f"running in pure Python while a compiled build is made in the background, "
        f"which takes about 5 minutes at low priority ({LOG}); later starts use it",
        file=sys.stderr,
    )


def tidy(folder: Path) -> None:
    """Delete unfinished builds beside `folder` whose process was killed."""
    for path in set(folder.parent.glob(f"{folder.name}.[0-9]*.*")) - set(unfinished(folder)):
        shutil.rmtree(path, ignore_errors=True)


def unfinished(folder: Path) -> list[Path]:
    """Return the builds beside `folder` that a living process is making."""
    found = folder.parent.glob(f"{folder.name}.[0-9]*.*")
    return [path for path in found if Path("/proc", path.name.split(".")[-2]).exists()]


def sources_of(names: Sequence[str], work: Path) -> Iterator[Path]:
    """Yield the files in `work` that `names` stand for; copy those outside the package."""
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
            for path in sorted((package / name).rglob("*.py")):
                if path not in plain:
                    yield path


def watch(process: "subprocess.Popen[bytes]", build: Path) -> None:
    """Show the step of mypyc until it is done: live on a terminal, otherwise a line per step."""
    # rich is not installed when a wheel in pure Python is built.
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
    """Return the current step of mypyc, found by the files it has written, and its progress."""
    sources = len(list(build.rglob("*.c")))
    if not sources:
        return "1 of 3: checking types and writing C", ""
    objects = len(list(build.rglob("*.o")))
    if not objects:
        return "2 of 3: compiling all packages as one file", ""
    return "3 of 3: compiling one module per source file", f"{objects} of {sources}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile flowguard's hot packages with mypyc.")
    parser.add_argument("folder", nargs="?", type=Path, help="instead of .compiled")
    parser.add_argument("sources", nargs="*", default=USUAL, help="instead of the usual ones")
    parser.add_argument("--background", action="store_true", help="start the build and return")
    arguments = parser.parse_args()
    if arguments.background:
        in_background()
    elif arguments.folder:
        compile_into(arguments.folder, arguments.sources)
    else:
        up_to_date()


if __name__ == "__main__":
    main()
