"""`python -m tests.soak`, or `make soak`: fresh examples for the property tests, for a given time.

`make test` repeats the same examples each time. Here each round draws others, from its own seed.
What fails is printed with the arguments or steps that make it fail, so that they can become an
example of the test (`@example(...)`, or a test of their own), and with the command to repeat it.
"""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tests.soak.finds import Outcome
from tests.support.reaper import reap_at_the_end

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 1_000_000
LOOK_S = 0.5
GRACE_S = 30.0
"""How long pytest may take to end when its time is over."""
NO_TESTS = (4, 5)
"""pytest's exit codes: a path is wrong, or no property test is there."""

console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)


@dataclass(slots=True)
class Soak:
    """All rounds so far."""

    paths: list[str]
    folder: Path
    ends_s: float
    found: dict[str, int] = field(default_factory=dict)
    """How often each test failed."""
    tests: int = 0

    def round(self, seed: int, progress: Progress) -> int:
        """All property tests once, or as many as the time allows; pytest's exit code."""
        noted, log = self.folder / f"{seed}.jsonl", self.folder / f"{seed}.log"
        noted.write_text("")
        began_s, before, failed = monotonic(), self.tests, sum(self.found.values())
        task = progress.add_task(f"seed {seed}", total=None, state="collecting")
        with log.open("w") as output, noted.open() as outcomes:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options(seed, noted), *self.paths],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us alone
            )
            try:
                while process.poll() is None and monotonic() < self.ends_s:
                    self._read(outcomes.readlines(), seed)
                    progress.update(task, state=f"{self.tests - before} property tests")
                    try:
                        process.wait(LOOK_S)
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                code = end(process)
            self._read(outcomes.readlines(), seed)
        progress.remove_task(task)
        finds = sum(self.found.values()) - failed
        if not finds and code in (0, 2):  # 2: ended early
            log.unlink()
        noted.unlink()
        console.print(
            f"seed {seed}: {self.tests - before} property tests in {monotonic() - began_s:.0f} s, "
            f"{finds or 'none'} failed"
        )
        if code in NO_TESTS:
            console.print(f"there is no property test: {log} says what pytest found", markup=False)
        elif code not in (0, 1, 2):
            console.print(f"pytest ended with {code}: {log} says why", markup=False)
        return code

    def _read(self, lines: list[str], seed: int) -> None:
        for line in lines:
            outcome = Outcome(**json.loads(line))
            self.tests += 1
            if not outcome.error:
                continue
            times = self.found[outcome.test] = self.found.get(outcome.test, 0) + 1
            text = named(outcome, seed)
            with (self.folder / "finds.txt").open("a") as file:
                file.write(text + "\n")
            if times == 1:
                console.print(text, markup=False)


def options(seed: int, noted: Path) -> list[str]:
    """Of pytest, for a round."""
    return [
        *("-q", "-n", "auto", "-p", "no:cacheprovider", "-p", "tests.soak.finds"),
        *("--noted", str(noted), "--hypothesis-profile=soak", f"--hypothesis-seed={seed}"),
    ]


def named(outcome: Outcome, seed: int) -> str:
    """A find in words that somebody can act on."""
    said = outcome.example or outcome.error[-2_000:]
    return (
        f"FOUND: {outcome.test}\n{said}\nRepeat it: {sys.executable} -m pytest '{outcome.test}' "
        f"--hypothesis-profile=soak --hypothesis-seed={seed}\n"
    )


def end(process: "subprocess.Popen[bytes]") -> int:
    """In good order if it can; its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def main(
    paths: Annotated[list[str] | None, typer.Argument(help="Tests, as pytest names them.")] = None,
    minutes: Annotated[float, typer.Option(min=0.0, help="No longer than this.")] = 10.0,
    seed: Annotated[int | None, typer.Option(help="Of the first round; absent: any.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="No more than so many.")] = None,
    folder: Annotated[Path, typer.Option(help="For what is found.")] = ROOT / ".soak",
) -> None:
    """Exit code 1: something was found; finds.txt in the folder has all of it."""
    reap_at_the_end()
    folder = folder.resolve()
    folder.mkdir(exist_ok=True)
    seed = SystemRandom().randrange(SEEDS) if seed is None else seed
    soak = Soak(paths or ["tests"], folder, monotonic() + 60 * minutes)
    done, interrupted = 0, False
    columns = (TextColumn("{task.description}: {task.fields[state]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            while monotonic() < soak.ends_s and done != rounds:
                if soak.round(seed + done, progress) in NO_TESTS:
                    raise typer.Exit(2)
                done += 1
        except KeyboardInterrupt:
            interrupted = True
    console.print(
        f"{soak.tests:,} property tests run, {len(soak.found)} of them failed"
        + (f": {folder / 'finds.txt'}" if soak.found else "")
    )
    if soak.found:
        raise typer.Exit(1)
    raise typer.Exit(130 if interrupted else 0)


if __name__ == "__main__":
    typer.run(main)
