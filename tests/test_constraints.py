"""constraints.txt pins what `make venv` installs, on every Python that pyproject.toml admits."""

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = "3.11.2"
"""That of Debian 12."""


def test_oldest_python_gets_each_pinned_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert OLDEST_PYTHON in SpecifierSet(project["requires-python"])
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    needs = {each.name: needed_python(each.name) for each in pinned}
    assert len({*needs.values()}) > 1
    assert {name: need for name, need in needs.items() if OLDEST_PYTHON not in need} == {}


def needed_python(distribution: str) -> SpecifierSet:
    """Return the versions of Python that an installed distribution admits, else all."""
    try:
        found = metadata(distribution)
    except PackageNotFoundError:  # It belongs to an extra that is not installed here.
        return SpecifierSet()
    return SpecifierSet(str(found.json.get("requires_python", "")))
