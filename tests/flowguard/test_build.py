"""The packages that run: those of the installation; in a checkout the compiled ones, but never old
ones."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowguard import __version__, build

MAIN = "from flowguard.__main__ import main; main()"
"""Code of the installed command `flowguard`."""
COMPILED = "from .compiled"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a compiled package that only reports that it runs."""
    package = tmp_path / "src" / "flowguard"
    shutil.copytree(build.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts").mkdir()
    (tmp_path / build.SCRIPT).write_text("# compiles\n")
    compiled = tmp_path / build.ROOMS / "flowguard"
    compiled.mkdir(parents=True)
    (compiled / "__init__.py").write_text("")
    (compiled / "__main__.py").write_text(f"import sys\nprint('{COMPILED}', *sys.argv[1:])\n")
    stamp(tmp_path)
    return tmp_path


def stamp(checkout: Path) -> None:
    (checkout / build.ROOMS / build.STAMP).write_text(build.digest(checkout))


def run(checkout: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = {"PYTHONPATH": str(checkout / "src")}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env=os.environ | path | environment,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_the_command_runs_compiled_rooms_of_these_sources(checkout: Path) -> None:
    assert run(checkout, "serve", "--help").stdout == f"{COMPILED} serve --help\n"
    # Not by their times: a checkout of another branch may make files older than the compiled ones.
    os.utime(checkout / "src" / "flowguard" / "types.py")
    assert run(checkout, "--version").stdout == f"{COMPILED} --version\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c: (c / "src/flowguard/types.py").write_text("# less"), id="a source"),
        pytest.param(lambda c: (c / "src/flowguard/new.py").touch(), id="a new file"),
        pytest.param(lambda c: (c / "src/flowguard/bounds.py").unlink(), id="a file less"),
        pytest.param(
            lambda c: (c / "src/flowguard/errors.py").rename(c / "src/flowguard/codec/errors.py"),
            id="a file elsewhere",
        ),
        pytest.param(lambda c: (c / build.SCRIPT).write_text("# another"), id="the compiler"),
        pytest.param(lambda c: (c / build.ROOMS / build.STAMP).unlink(), id="not complete"),
    ],
)
def test_compiled_rooms_of_other_sources_are_not_up_to_date(
    checkout: Path, change: Callable[[Path], object]
) -> None:
    assert build.is_up_to_date(checkout)
    change(checkout)
    assert not build.is_up_to_date(checkout)


@pytest.mark.slow
def test_old_rooms_do_not_run_and_serve_says_so(checkout: Path) -> None:
    with (checkout / "src" / "flowguard" / "types.py").open("a") as source:
        source.write("# changed\n")
    served = run(checkout, "serve", "--help")
    assert COMPILED not in served.stdout
    assert "make compile" in served.stderr
    assert len(served.stderr.splitlines()) == 1
    said = run(checkout, "--version")
    assert said.stdout.endswith("(pure Python)\n")
    assert said.stderr == ""
    stamp(checkout)
    assert run(checkout, "--version").stdout.startswith(COMPILED)


@pytest.mark.slow
def test_pure_python_can_be_asked_for(checkout: Path) -> None:
    said = run(checkout, "--version", FLOWGUARD_PURE="1")
    assert said.stdout == f"flowguard {__version__} (pure Python)\n"
    assert said.stderr == ""


@pytest.fixture
def started(checkout: Path) -> Path:
    """A file that names what `compile.py --background` of this checkout starts."""
    shutil.copy(build.CHECKOUT / build.SCRIPT, checkout / build.SCRIPT)
    programs, file = checkout / "programs", checkout / "started"
    programs.mkdir()
    (programs / "nice").write_text(
        f"#!/bin/sh\n(printf '%s\\n' \"$*\"; cut -d ' ' -f 1,5,6 /proc/$$/stat) > {file}.part\n"
        f"mv {file}.part {file}\n"
    )
    (programs / "nice").chmod(0o755)
    return file


def compile_later(checkout: Path, **environment: str) -> str:
    """Run it with the `nice` of this checkout; return what it prints."""
    path = os.pathsep.join([str(checkout / "programs"), os.environ["PATH"]])
    clean = {name: text for name, text in os.environ.items() if name != "FLOWGUARD_PURE"}
    done = subprocess.run(
        [sys.executable, checkout / build.SCRIPT, "--background"],
        env=clean | {"PATH": path} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_start_leaves_compiling_to_the_background(checkout: Path, started: Path) -> None:
    assert ".compiled.log" in compile_later(checkout)
    while not started.exists():  # pytest's own limit ends a test that hangs.
        time.sleep(0.01)
    command, ids = started.read_text().splitlines()
    assert str(checkout / build.SCRIPT) in command
    process, group, session = map(int, ids.split())
    assert group == process, "Ctrl-C for the broker would end the build"
    assert session == os.getsid(0), "Linux shares cores by session: the broker would get half"
    assert not (checkout / build.ROOMS).exists(), "a start would find a build of other sources"


def test_a_build_in_the_background_is_not_started_twice(checkout: Path, started: Path) -> None:
    (checkout / f"{build.ROOMS}.{os.getpid()}.x").mkdir()
    assert ".compiled.log" in compile_later(checkout)
    assert (checkout / build.ROOMS).exists()
    assert not started.exists()


def test_a_start_compiles_nothing_if_nothing_is_needed(checkout: Path, started: Path) -> None:
    assert compile_later(checkout, FLOWGUARD_PURE="1") == ""
    stamp(checkout)
    assert compile_later(checkout) == ""
    assert not started.exists()
