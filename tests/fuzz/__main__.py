"""Fuzz the compiled rooms by coverage: `make fuzz ARGS="decode --inputs 1e8"`.

The compiler is clang, which counts the branches of the compiled rooms; atheris (libFuzzer) changes
inputs until they take new ones. It runs in segments, a process and a line each, so that an
interruption loses little. What is found is left in `.fuzz`, and said how to run again. With
`--keep` the inputs that reach something new replace those in the repository, as few as do.
"""

import time
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console

from tests.fuzz import corpus
from tests.fuzz.process import Failure, Fuzzer
from tests.fuzz.seeds import seeds

SEGMENT_INPUTS: Final = {"decode": 2_000_000, "converse": 100_000}
"""Half a minute on a quiet machine."""

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
    fuzzer = Fuzzer(target)
    corpus.unpack(target, fuzzer.found)
    try:
        run(fuzzer, int(float(inputs)), seed)
    except Failure as failure:
        console.print(str(failure), markup=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print(f"{target}: stopped")
        raise typer.Exit(130) from None
    if keep:
        found = {path.read_bytes() for path in fuzzer.found.iterdir()} - set(seeds())
        corpus.write(target, fuzzer.worth_keeping([*seeds(), *sorted(found, key=len)]))


def run(fuzzer: Fuzzer, inputs: int, seed: int) -> None:
    """In segments, and a line for each; raises Failure."""
    target = fuzzer.target
    size = SEGMENT_INPUTS[target]
    console.print(f"{target}: {inputs:,} inputs, seeds from {seed} on, a line for each {size:,}")
    began_s = time.monotonic()
    done = conversations = memory_mib = branches = 0
    reached = ""
    while done < inputs:
        segment_s = time.monotonic()
        facts = fuzzer.segment(min(size, inputs - done), seed)
        done += facts["inputs"]
        conversations += facts.get("conversations", 0)
        memory_mib = max(memory_mib, facts["memory_mib"])
        branches = max(branches, facts["branches"])
        per_s = facts["inputs"] / (time.monotonic() - segment_s)
        spoken = f"{conversations:,} conversations, " if conversations else ""
        reached = (
            f"{spoken}{branches:,} branches by {facts['corpus']:,} inputs, {memory_mib} MiB at most"
        )
        console.print(
            f"{target}: {done:,} of {inputs:,} inputs, seed {seed}, {per_s:,.0f} /s, {reached}"
        )
        seed += 1
    took_s = time.monotonic() - began_s
    console.print(f"{target}: nothing wrong in {done:,} inputs, {took_s:,.0f} s, {reached}")


if __name__ == "__main__":
    typer.run(main)
