"""The Dockerfile: what can be said of it where nothing builds images."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import HANG_S

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Dockerfile"
STEPS = re.sub(r"\\\n\s*", "", FILE.read_text())


def stages() -> list[list[list[str]]]:
    """The instructions of each stage, as word and rest."""
    found: list[list[list[str]]] = []
    for line in STEPS.splitlines():
        if line and not line.startswith("#"):
            if line.startswith("FROM"):
                found.append([])
            found[-1].append(line.split(None, 1))
    return found


def test_whatever_is_copied_is_in_the_repository() -> None:
    for stage in stages():
        for word, rest in stage:
            if word == "COPY" and not rest.startswith("--from"):
                *sources, _ = rest.split()
                assert all((ROOT / source).exists() for source in sources), rest


def test_everything_that_the_wheel_is_made_of_is_copied() -> None:
    copied = {rest.split()[0] for word, rest in stages()[0] if word == "COPY"}
    packages = re.search(r"^packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    assert packages is not None
    assert {name.strip(' "').split("/")[0] for name in packages[1].split(",")} <= copied


def test_all_that_serve_can_be_asked_for_is_in_it() -> None:
    installed = re.search(r'"\$wheel\[(.*)\]"', STEPS)
    assert installed is not None
    assert {*installed[1].split(",")} == {"redis", "kafka", "websockets", "passwords", "jwt"}


def test_the_image_has_no_compiler_and_is_run_by_nobody_in_particular() -> None:
    words = [word for word, _ in stages()[-1]]
    last = dict(stages()[-1])
    assert last["USER"] == "10001:10001"
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "gcc" not in str(stages()[-1])
    assert not any(word == "ADD" or "curl" in rest for stage in stages() for word, rest in stage)


@pytest.mark.peers
def test_docker_accepts_it() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker runs here: nobody builds the image")
    subprocess.run(
        [docker, "build", "--check", "-f", str(FILE), str(ROOT)], check=True, timeout=HANG_S
    )
