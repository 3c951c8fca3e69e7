"""What a release uploads: the recipe of its wheels, and archives that build the same wheels."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.deploy.checkers import checked
from tests.deploy.unpacked_image import ROOT
from tests.interop.broker import environment_with

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ARCHITECTURES = ("x86_64", "aarch64")

pytestmark = pytest.mark.slow


def build(folder: Path, target: str, to: Path) -> Path:
    """Build a distribution in pure Python, and return it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)],
        cwd=folder,
        env=environment_with({"FLOWGUARD_PURE": "1"}),
        check=True,
        capture_output=True,
    )
    (made,) = to.iterdir()
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    archive = zipfile.ZipFile(wheel)
    return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(params=["flowguard-mqtt", "flowguard-guard"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "flowguard-mqtt":
        return ROOT
    folder = tmp_path / "project"
    subprocess.run([sys.executable, str(ROOT / "guard" / "make.py"), str(folder)], check=True)
    return folder


def test_source_archive_has_only_sources_and_builds_the_same_wheel(
    project: Path, tmp_path: Path
) -> None:
    archive = build(project, "sdist", tmp_path / "sdist")
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    if project == ROOT:
        words = ["git", "ls-files"]
        listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        sources = {line.split("/")[0] for line in listed.stdout.splitlines()}
        assert {path.name for path in unpacked.iterdir()} - {"PKG-INFO"} <= sources
    again = contents(build(unpacked, "wheel", tmp_path / "again"))
    assert again == contents(build(project, "wheel", tmp_path / "wheel"))


@pytest.mark.peers
def test_wheels_are_built_for_each_python_and_architecture() -> None:
    ended = checked("cibuildwheel", "--platform", "linux", "--print-build-identifiers", ROOT)
    assert ended.returncode == 0, ended.stderr
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert set(ended.stdout.split()) == {
        f"cp{version.replace('.', '')}-manylinux_{architecture}"
        for version in versions
        for architecture in ARCHITECTURES
    }
