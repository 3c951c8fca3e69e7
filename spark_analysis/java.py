"""Java: finds the one that Spark will run on, before Spark is started.

Spark's own message about a missing or an old Java is a stack trace. This module's message names the
installed and the needed version, and how to get it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_analysis.terminal import JobFailed

NEEDED: Final = 17
"""The oldest Java version that Spark 4 runs on."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int

    def __str__(self) -> str:
        return f"Java {self.version} ({self.home})"


def find_java(
    environment: Mapping[str, str] = os.environ, installed: Path = Path("/usr/lib/jvm")
) -> Java:
    """The first Java that is new enough: of JAVA_HOME, of PATH, of `installed`.

    Raises JobFailed, with the remedy.
    """
    older = []
    for program in _programs(environment, installed):
        java = _examine(program)
        if java is not None and java.version >= NEEDED:
            return java
        if java is not None and java not in older:
            older.append(java)
    found = ", ".join(str(java) for java in older) or "no Java at all"
    raise JobFailed(
        f"Spark needs Java {NEEDED} or newer; found here: {found}.\n"
        f"  Debian, Ubuntu:  apt-get install openjdk-{NEEDED}-jre-headless\n"
        f"  Fedora:          dnf install java-{NEEDED}-openjdk-headless\n"
        f"  macOS:           brew install openjdk@{NEEDED}\n"
        "One that is installed elsewhere is found if JAVA_HOME names its folder."
    )


def _programs(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    yield from sorted(installed.glob("*/bin/java"))


def _examine(program: Path) -> Java | None:
    try:
        said = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(said.stderr + said.stdout)
    if version is None:
        return None
    return Java(program.resolve().parent.parent, int(version[1]))
