"""What deploy/docker/Dockerfile makes, in a folder: no daemon is needed, and no network.

The instructions of the Dockerfile say what is copied and where, and what is started. The wheel is
built from the copied files alone. Paths and ports of the image become those of the folder and free
ones.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.broker import ANNOUNCEMENT, Broker, address_in, environment_with
from tests.support.patience import HANG_S

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "deploy" / "docker" / "Dockerfile"
Instruction = tuple[str, str]
"""Word and rest."""
PLACES: Final = re.compile(r"(?<![\w.])/(?=(?:opt|etc|run)/flowguard|data\b)")
"""Where a path of the image begins."""
PORTS: Final = re.compile(r"(?<=0\.0\.0\.0:)\d+")


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage."""
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n\s*", "", FILE.read_text()).splitlines():
        if line and not line.startswith("#"):
            if line.startswith("FROM"):
                found.append([])
            word, rest = line.split(None, 1)
            found[-1].append((word, rest))
    return found


def copies(stage: list[Instruction]) -> Iterator[tuple[list[str], str]]:
    """Yield sources and target of each COPY from the repository."""
    for word, rest in stage:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            yield sources, target


@dataclass(frozen=True)
class Image:
    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def settings(self) -> Path:
        """The folder that users mount."""
        return self.root / "etc" / "flowguard"

    def here(self, text: str) -> str:
        """Return a text with the paths and ports of the image replaced."""
        return PLACES.sub(f"{self.root}/", PORTS.sub("0", text))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        given = dict(stages()[-1])["ENV"].split()
        values = {name: self.here(value) for name, value in (each.split("=", 1) for each in given)}
        values["PATH"] = values["PATH"].replace("$PATH", os.environ["PATH"])
        return environment_with({"FLOWGUARD_PURE": "1", **values, **(more or {})})

    def words(self, *arguments: str) -> list[str]:
        entry = json.loads(dict(stages()[-1])["ENTRYPOINT"])
        return [self.here(word) for word in entry] + list(arguments)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`docker run IMAGE ARGUMENTS`, of a command that ends."""
        return subprocess.run(
            self.words(*arguments),
            cwd=self.settings,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )

    @contextmanager
    def running(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Iterator["Container"]:
        """`docker run IMAGE ARGUMENTS`; at the end `docker stop`, and exit code 0."""
        log = self.root / "stderr.txt"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                self.words(*arguments),
                cwd=self.settings,
                env=self.environment(environment),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        try:
            assert process.stdout is not None
            said: list[str] = []
            while not said or not said[-1].startswith("http on "):
                line = process.stdout.readline()
                assert line, "".join(said) + log.read_text()
                said.append(line.strip())
            (listening,) = [line for line in said if line.startswith(ANNOUNCEMENT)]
            _, port = address_in(listening)
            # An address of loopback that a listener on 127.0.0.1 does not have.
            broker = Broker(process, "127.0.0.2", port, log)
            yield Container(broker, said, int(said[-1].rpartition(":")[2].rstrip("/")))
            assert broker.terminate() == 0, log.read_text()
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Container:
    broker: Broker
    said: list[str]
    """Lines of standard output up to the address of the HTTP port."""
    http_port: int


def unpacked(root: Path) -> Image:
    """Do in a folder what the Dockerfile says."""
    image = Image(root)
    build, last = stages()
    source = root / "source"
    for sources, target in copies(build):
        for each in sources:
            (source / target).mkdir(parents=True, exist_ok=True)
            to = source / target / (each if target == "./" else "")
            subprocess.run(
                ["cp", "-r", f"{ROOT / each}{'/.' if to.is_dir() else ''}", to], check=True
            )
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(root / "wheels")],
        cwd=source,
        env=environment_with({"FLOWGUARD_PURE": "1"}),
        check=True,
        capture_output=True,
    )
    (wheel,) = (root / "wheels").glob("*.whl")
    environment = root / "opt" / "flowguard"
    venv.create(environment, symlinks=True)
    # What flowguard depends on is installed here already, because tests use no network.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    words = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *words], check=True)
    for sources, target in copies(last):
        for each in sources:
            to = Path(image.here(target)) / Path(each).name
            to.write_text(image.here((ROOT / each).read_text()))
            to.chmod((ROOT / each).stat().st_mode)
    for path in (image.data, image.settings, root / "run" / "flowguard"):
        path.mkdir(parents=True)
    return image
