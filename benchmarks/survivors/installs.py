"""Brokers of others, brought into `.peers` by the package clients of their languages.

Each `install` does nothing where the version wanted is there, and raises `Unavailable` with what to
do where it cannot be had. Compilers that are missing come from apt, as root and not with
FLOWGUARD_NO_APT=1.
"""

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.build import Unavailable

PEERS = Path(__file__).resolve().parents[2] / ".peers"
LIMIT_S = 1_200.0
SAID_CHARACTERS = 300
POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian asks it whether a package may start its service."""


def call(*command: str, folder: Path | None = None, **variables: str) -> str:
    """Run a package client; what it printed. Raises `Unavailable` with its last words."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command)}: no end after {LIMIT_S:.0f} s") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-SAID_CHARACTERS:]
        raise Unavailable(f"{' '.join(command[:3])} failed: {said}")
    return done.stdout


def program(name: str, package: str) -> str:
    """The path of a program; from apt where it is missing and we may."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if found := shutil.which(name, path=path):
        return found
    apt(package)
    if found := shutil.which(name, path=path):
        return found
    raise Unavailable(f"{name} is missing; Debian: apt-get install {package}")


def apt(package: str) -> None:
    """Install a package, without the service that it would start."""
    may = os.geteuid() == 0 and not os.environ.get("FLOWGUARD_NO_APT")
    if not may or shutil.which("apt-get") is None:
        raise Unavailable(f"{package} is missing; Debian, as root: apt-get install {package}")
    is_ours = not POLICY.exists()
    if is_ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        call("apt-get", "-qq", "update")
        words = ["apt-get", "-qq", "install", "--no-install-recommends", package]
        call(*words, DEBIAN_FRONTEND="noninteractive")
    finally:
        if is_ours:
            POLICY.unlink()


def npm(name: str, version: str) -> Path:
    """A package with its dependencies; the folder of its `node_modules`."""
    folder = PEERS / name
    manifest = folder / "node_modules" / name / "package.json"
    if not (manifest.exists() and f'"version": "{version}"' in manifest.read_text()):
        program("node", "nodejs")
        folder.mkdir(parents=True, exist_ok=True)
        words = ["install", "--silent", "--no-audit", "--no-fund", "--no-save", f"{name}@{version}"]
        call(program("npm", "npm"), *words, "--prefix", str(folder))
    return folder / "node_modules"


def go(name: str, module: str, version: str) -> Path:
    """A program of a module; its path."""
    folder = PEERS / f"{name}-{version}"
    found = folder / module.rpartition("/")[2]
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        call(program("go", "golang-go"), "install", f"{module}@{version}", GOBIN=str(folder))
    return found


def cargo(name: str, version: str) -> Path:
    """A program of a crate; its path."""
    folder = PEERS / f"{name}-{version}"
    found = folder / "bin" / name
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = ["install", name, "--version", version, "--root", str(folder)]
        # Not --locked: today's compiler refuses a dependency of the versions locked then.
        call(program("cargo", "cargo"), *words, "--target-dir", str(folder / "target"))
        shutil.rmtree(folder / "target", ignore_errors=True)
    return found


def maven(name: str, artifact: str, version: str) -> str:
    """An artifact `group:name` with all that it needs at run time; a class path."""
    group, artifact_name = artifact.split(":")
    folder = PEERS / f"{name}-{version}"
    if not (folder / f"{artifact_name}-{version}.jar").exists():
        program("java", "openjdk-17-jre-headless")
        folder.mkdir(parents=True, exist_ok=True)
        pom = folder / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0">'
            "<modelVersion>4.0.0</modelVersion><groupId>peers</groupId>"
            f"<artifactId>{name}</artifactId><version>1</version><dependencies><dependency>"
            f"<groupId>{group}</groupId><artifactId>{artifact_name}</artifactId>"
            f"<version>{version}</version></dependency></dependencies></project>\n"
        )
        words = ["-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        call(
            program("mvn", "maven"),
            *words,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}",
        )
    return f"{folder}/*"
