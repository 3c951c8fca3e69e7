"""libFuzzer, in a process of its own for each thing that it is asked."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz import build, corpus

MEMORY_MAX_MIB: Final = 512
"""Memory limit of the process: many times the need of a segment."""
OPTIONS: Final = (
    f"-max_len={corpus.WIDTH_MAX}",
    f"-rss_limit_mb={MEMORY_MAX_MIB}",
    "-entropic=0",  # Its statistics cost up to ten times the input.
    "-reload=0",  # The corpus has no other writer.
    "-print_final_stats=1",
)
FACTS: Final = {
    "inputs": re.compile(r"number_of_executed_units: +(\d+)"),
    "memory_mib": re.compile(r"peak_rss_mb: +(\d+)"),
    "branches": re.compile(r"DONE +cov: (\d+)"),
    "corpus": re.compile(r"DONE .*corp: (\d+)"),
    "conversations": re.compile(r"conversations: (\d+)(?!.*conversations: )", re.DOTALL),
}


class Failure(Exception):
    """The fuzzed code or the fuzzer failed; the text explains how."""


class Fuzzer:
    """libFuzzer with one target."""

    def __init__(self, target: str) -> None:
        """Compile the packages if they have changed."""
        self.target = target
        self.rooms = build.rooms(target)
        self.work = build.WORK / target
        self.found = self.work / "corpus"

    def segment(self, inputs: int, seed: int) -> dict[str, int]:
        """Run `inputs` inputs and return the values of its `FACTS`. Raises Failure."""
        artifacts = f"-artifact_prefix={self.work}/"
        said = self._run(f"-runs={inputs}", f"-seed={seed}", artifacts, str(self.found))
        facts = {name: fact.search(said) for name, fact in FACTS.items()}
        return {name: int(fact[1]) for name, fact in facts.items() if fact is not None}

    def worth_keeping(self, inputs: Sequence[bytes]) -> list[bytes]:
        """Those of `inputs` that reach what none before them has reached."""
        folder = self.work / "candidates"
        folder.mkdir(exist_ok=True)
        files = [folder / f"{number}" for number in range(len(inputs))]
        for file, data in zip(files, inputs, strict=True):
            file.write_bytes(data)
        # As libFuzzer merges: it is told how many files there are, how many of them stay anyway,
        # and their names; behind that it notes "FT", the number of a file, and what is new in it.
        control = self.work / "merge.txt"
        control.write_text("".join(f"{line}\n" for line in (len(files), 0, *files)))
        self._run("-merge_inner=1", f"-merge_control_file={control}")
        notes = [line.split() for line in control.read_text().splitlines()]
        return [inputs[int(note[1])] for note in notes if note[0] == "FT" and len(note) > 2]

    def _run(self, *options: str) -> str:
        """Return its output."""
        log = self.work / "fuzzer.log"
        command = [sys.executable, "-P", str(Path(__file__).with_name("run.py")), self.target]
        with log.open("w") as output:
            code = subprocess.run(
                [*command, *OPTIONS, *options],
                env=os.environ | {"PYTHONPATH": str(self.rooms)},
                cwd=self.work,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        said = log.read_text(errors="replace")
        if code:
            raise Failure(
                f"{said[-4_000:]}\n{self.target}: something is wrong (exit code {code}); its input"
                f" is the newest file of {self.work}. Again:\n"
                f"PYTHONPATH={self.rooms} {' '.join(command)} FILE"
            )
        return said
