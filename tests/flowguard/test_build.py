"""Which rooms run: those that the program was installed with; in a checkout the compiled ones, but
never old ones."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowguard import __version__, build

MAIN = "from flowguard.__main__ import main; main()"
"""What the installed command `flowguard` does."""
COMPILED = "from .compiled"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose compiled package only says that it is the one that runs."""
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
    # Whatever times say: a checkout of another branch may make files older than the rooms.
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
