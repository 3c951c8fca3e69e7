"""Fuzz the compiled rooms by coverage: `make fuzz ARGS="decode --inputs 1e8"`.

The compiler is clang, which counts the branches of the compiled rooms; atheris (libFuzzer) changes
inputs until they take new ones. What is found is left in `.fuzz`, and said how to run again. With
`--keep` the inputs that reach something new replace those in the repository, as few as do.
"""

import os
import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.fuzz import corpus

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".fuzz"
COMPILED = WORK / "compiled"
COVERAGE = "-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp"

console = Console(highlight=False, soft_wrap=True)


class Target(StrEnum):
    """The decoder, or a connection with a node behind it."""

    DECODE = "decode"
    CONVERSE = "converse"


def main(
    target: Annotated[Target, typer.Argument(help="The decoder, or a connection with a node.")],
    inputs: Annotated[str, typer.Option(help="How many, such as 1e8.")] = "1e6",
    seed: Annotated[int, typer.Option(min=1, help="Of libFuzzer: where its changes begin.")] = 1,
    keep: Annotated[bool, typer.Option(help="Write what is found to the repository.")] = False,
) -> None:
    """Fuzz the compiled rooms; exit code 1: something is wrong, and its input is kept."""
    prepare()
    found = WORK / target
    corpus.unpack(target, found)
    limits = [f"-max_len={corpus.WIDTH_MAX}", f"-artifact_prefix={WORK}/{target}-"]
    console.print(f"{target}: {int(float(inputs)):,} inputs, seed {seed}")
    if run(target, f"-runs={int(float(inputs))}", f"-seed={seed}", *limits, str(found)):
        console.print(f"{target}: something is wrong; its input is the newest file of {WORK}.")
        console.print(
            f"Again: PYTHONPATH={COMPILED} {sys.executable} -m tests.fuzz.run {target} FILE"
        )
        raise typer.Exit(1)
    if keep:
        corpus.write(target, (path.read_bytes() for path in found.iterdir()))


def prepare() -> None:
    """Compile the rooms, counting branches, unless that is done."""
    if shutil.which("clang") is None:
        raise SystemExit("no clang here; Debian, Ubuntu: apt-get install clang")
    sources = [*(ROOT / "src").rglob("*.py"), ROOT / "scripts" / "compile.py"]
    newest_s = max(path.stat().st_mtime for path in sources)
    if COMPILED.exists() and COMPILED.stat().st_mtime > newest_s:
        return
    console.print("compiling with clang and mypyc: one to three minutes ...")
    tools = {"CC": "clang", "LDSHARED": "clang -shared", "CFLAGS": f"-g0 {COVERAGE}"}
    WORK.mkdir(exist_ok=True)
    command = [sys.executable, str(ROOT / "scripts" / "compile.py"), str(COMPILED)]
    subprocess.run(command, env=os.environ | tools, check=True)
    COMPILED.touch()


def run(target: str, *options: str) -> int:
    """In a process of its own, that of the compiled rooms."""
    environment = os.environ | {"PYTHONPATH": f"{COMPILED}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.fuzz.run", target, *options]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    typer.run(main)
