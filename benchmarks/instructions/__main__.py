"""`python -m benchmarks.instructions`: user instructions per message, beside what they were.

Valgrind counts them, so they are the same however busy the machine is; what the kernel and trio do
is not in them. A guard for whoever changes the path of a message, not a test: other compilers and
interpreters count differently.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from benchmarks import pages
from benchmarks.build import Unavailable, build
from benchmarks.parts import Write, split
from benchmarks.peers import COMPILED

from .load import ROWS

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
MORE = 1.03
"""A row with so many times its instructions is marked."""
LIMIT_S = 900
PACKAGE = "Debian: apt-get install valgrind"
console = pages.console()


def main(
    only: Annotated[str, typer.Option(help=f"Of {', '.join(ROWS)}, by comma.")] = "",
    write: Write = False,
) -> None:
    """Counts instructions per delivered message on the compiled rooms; with --write: as baseline.

    Exit status 1: something could not be counted.
    """
    names = split(only) or list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        raise typer.BadParameter(f"unknown rows {unknown}; there are {', '.join(ROWS)}")
    baseline: dict[str, Any] = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    found: dict[str, int] = {}
    try:
        library = build("instructions/collect", shared=True)
        with console.status("") as status:
            for name in names:
                status.update(f"{ROWS[name].title} ...")
                found[name] = count(name, library)
    except (Unavailable, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or ""
        console.print(f"[red]{escape(str(error))}[/]\n{escape(said)}")
        raise typer.Exit(1) from error
    before = baseline.get("instructions", {})
    console.print(table(found, before))
    console.print(f"[dim]{escape(origin())}; baseline: {escape(baseline.get('origin', 'none'))}[/]")
    if write:
        kept = {"origin": origin(), "instructions": {**before, **found}}
        BASELINE.write_text(json.dumps(kept, indent=1) + "\n")
        console.print(f"written: {BASELINE}")


def count(name: str, library: Path) -> int:
    """Instructions of the broker per delivered message of a row."""
    with TemporaryDirectory(prefix="flowguard-bench-") as folder:
        counts = Path(folder, "callgrind")
        valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no")
        files = (f"--callgrind-out-file={counts}", f"--log-file={folder}/log")
        load = (sys.executable, "-m", "benchmarks.instructions.load", name, str(library))
        command = ("setarch", "--addr-no-randomize", *valgrind, *files, *load)
        paths = os.pathsep.join([str(COMPILED), str(HERE.parents[1])])
        seeded = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                command, env=seeded, capture_output=True, text=True, check=True, timeout=LIMIT_S
            )
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename} is not installed; {PACKAGE}") from error
        lines = counts.read_text().splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith("totals:"))
    return round(total / int(done.stdout))


def table(found: Mapping[str, int], before: Mapping[str, int]) -> Table:
    shown = Table(title="User instructions per delivered message, trio and kernel not included")
    for column in ("load", "baseline", "now", "ratio"):
        shown.add_column(column, justify="left" if column == "load" else "right")
    for name, now in found.items():
        was = before.get(name)
        ratio = now / was if was else 1.0
        mark = f"[red]{ratio:.3f}[/]" if ratio > MORE else f"{ratio:.3f}"
        shown.add_row(ROWS[name].title, f"{was:,}" if was else "-", f"{now:,}", mark)
    return shown


def origin() -> str:
    version = sys.version.partition(" ")[0]
    return f"Python {version}, {compiler()}, flowguard {pages.commit()}, {pages.today()}"


def compiler() -> str:
    done = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition("\n")[0]


if __name__ == "__main__":
    typer.run(main)
