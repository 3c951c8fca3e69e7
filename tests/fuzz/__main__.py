"""Fuzz the compiled rooms by coverage: `make fuzz ARGS="decode --inputs 1e8"`.

The compiler is clang, which counts the branches of the compiled rooms; atheris (libFuzzer) changes
inputs until they take new ones. It runs in segments, a process and a line each, so that an
interruption loses little. What is found is left in `.fuzz`, and said how to run again. With
`--keep` the inputs that reach something new are added to those in the repository.
"""

import os
import re
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from tests.fuzz import build, corpus

SEGMENT_INPUTS: Final = {"decode": 2_000_000, "converse": 100_000}
"""A minute or so."""
MEMORY_MAX_MIB: Final = 512
"""Of the process: half of it is far more than any segment needs."""
OPTIONS: Final = (
    f"-max_len={corpus.WIDTH_MAX}",
    f"-rss_limit_mb={MEMORY_MAX_MIB}",
    "-entropic=0",  # Keeping the statistics for it cost two to ten times what an input does.
    "-reload=0",  # Nobody else writes to the corpus.
    "-print_final_stats=1",
)
FACTS: Final = {
    "inputs": re.compile(r"number_of_executed_units: +(\d+)"),
    "memory_mib": re.compile(r"peak_rss_mb: +(\d+)"),
    "branches": re.compile(r"DONE +cov: (\d+)"),
    "corpus": re.compile(r"DONE .*corp: (\d+)"),
}

console = Console(highlight=False, soft_wrap=True)


class Target(StrEnum):
    """The decoder, or a connection with a node behind it."""

    DECODE = "decode"
    CONVERSE = "converse"


def main(
    target: Annotated[Target, typer.Argument(help="The decoder, or a connection with a node.")],
    inputs: Annotated[str, typer.Option(help="How many, such as 1e8.")] = "1e6",
    seed: Annotated[int, typer.Option(min=1, help="Of the first segment, then counted up.")] = 1,
    keep: Annotated[bool, typer.Option(help="Write what is found to the repository.")] = False,
) -> None:
    """Fuzz the compiled rooms; exit code 1: something is wrong, and its input is kept."""
    rooms = build.rooms(target)
    found = build.WORK / target / "corpus"
    corpus.unpack(target, found)
    wanted = int(float(inputs))
    console.print(f"{target}: {wanted:,} inputs, seeds from {seed} on")
    began_s = time.monotonic()
    done = memory_mib = 0
    while done < wanted:
        runs = min(SEGMENT_INPUTS[target], wanted - done)
        segment_s = time.monotonic()
        try:
            facts = segment(target, rooms, found, runs, seed)
        except KeyboardInterrupt:
            console.print(f"{target}: stopped after {done:,} inputs")
            raise typer.Exit(130) from None
        if not facts:
            raise typer.Exit(1)
        took_s = time.monotonic() - segment_s
        done += facts["inputs"]
        memory_mib = max(memory_mib, facts["memory_mib"])
        console.print(
            f"{target}: {done:,} of {wanted:,} inputs, seed {seed}, {facts['inputs'] / took_s:,.0f}"
            f" /s, {facts['branches']:,} branches by {facts['corpus']:,} inputs, {memory_mib} MiB"
        )
        seed += 1
    console.print(
        f"{target}: {done:,} inputs, nothing found, {time.monotonic() - began_s:,.0f} s,"
        f" {facts['branches']:,} branches, {memory_mib} MiB at most"
    )
    if keep:
        corpus.write(target, (path.read_bytes() for path in found.iterdir()))


def segment(target: str, rooms: Path, found: Path, runs: int, seed: int) -> dict[str, int]:
    """What libFuzzer says of so many inputs in a process of its own; {}: something is wrong."""
    log = build.WORK / target / "segment.log"
    run = Path(__file__).with_name("run.py")
    command = [sys.executable, "-P", str(run), target, *OPTIONS]
    artifacts = f"-artifact_prefix={build.WORK / target}/"
    environment = os.environ | {"PYTHONPATH": str(rooms)}
    with log.open("w") as output:
        code = subprocess.run(
            [*command, artifacts, f"-runs={runs}", f"-seed={seed}", str(found)],
            env=environment,
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    said = log.read_text(errors="replace")
    facts = {name: fact.search(said) for name, fact in FACTS.items()}
    if code == 0:
        return {name: int(fact[1]) for name, fact in facts.items() if fact is not None}
    console.print(said[-4_000:], markup=False)
    console.print(f"{target}: something is wrong; its input is the newest file of {log.parent}.")
    console.print(
        f"Again: cd {log.parent} && PYTHONPATH={rooms} {' '.join(command[:4])} FILE", markup=False
    )
    return {}


if __name__ == "__main__":
    typer.run(main)
