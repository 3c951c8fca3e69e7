"""A terminal: runs commands of an operator in one directory, and keeps what they print."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.broker import environment_with
from tests.support.patience import HANG_S

COLUMNS = 132
POLL_S = 0.2


@dataclass
class Command:
    text: str
    output: str


@dataclass
class Step:
    """A step of the drill, as the page shows it."""

    title: str
    purpose: str
    commands: list[Command] = field(default_factory=list)


class Terminal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self.ports: dict[int, int] = {}
        """The ports that the page shows, and the free ones that stand for them."""
        programs = Path(sys.executable).parent
        self.environment = {
            **environment_with(None),
            "PATH": f"{programs}:{os.environ.get('PATH', '')}:/usr/sbin",
            "COLUMNS": str(COLUMNS),
            "HOME": str(folder),
        }

    def step(self, title: str, purpose: str) -> None:
        """Begin a step; `purpose` is a sentence or two."""
        self.steps.append(Step(title, purpose))

    def run(self, text: str, *, code: int = 0) -> str:
        """Run a command, note it with its output, and return that."""
        output = self.quiet(text, code=code)
        self.note(text, output)
        return output

    def quiet(self, text: str, *, code: int | None = 0) -> str:
        """Run a command that the page does not show; `code`: the exit code that it must have."""
        done = subprocess.run(
            ["bash", "-c", self.real(text)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert code in (None, done.returncode), f"{text}\n{done.stdout}"
        return self.shown(done.stdout)

    def real(self, text: str) -> str:
        """Return a text of the page with the ports of this run."""
        for port, free in self.ports.items():
            text = text.replace(f":{port}", f":{free}")
        return text

    def shown(self, text: str) -> str:
        """Return an output as the page has it: with default ports, and no path of this machine."""
        for port, free in self.ports.items():
            text = text.replace(f":{free}", f":{port}")
        return text.replace(str(self.folder), "~")

    def until(self, text: str, wanted: str, *, seconds: float = HANG_S) -> str:
        """Run a command again and again until it prints `wanted`; note that run."""
        output = self.wait_for(text, wanted, seconds=seconds)
        self.note(text, output)
        return output

    def wait_for(self, text: str, wanted: str, *, seconds: float = HANG_S) -> str:
        """The same, without a note."""
        until_s = time.monotonic() + seconds
        while wanted not in (output := self.quiet(text, code=None)):
            assert time.monotonic() < until_s, (
                f"{wanted!r} is not in the answer of {text}\n{output}"
            )
            time.sleep(POLL_S)
        return output

    @contextmanager
    def background(self, text: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a command beside others; it has ended at the end of the block, or is killed."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {self.real(text)}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
            process.wait(HANG_S)
        finally:
            process.kill()
            process.communicate()

    def note(self, text: str, output: str) -> None:
        """Note a command that ran in the background."""
        self.steps[-1].commands.append(Command(text, output))
