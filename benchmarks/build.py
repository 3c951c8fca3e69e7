"""Compiles the C programs on demand, into `.bench/bin`, named after their sources' digest."""

import hashlib
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".bench"
HEADERS = ("wire.h", "stream.h", "measure.h", "clients.h", "mqtt5.h", "crowd.h")
LIBRARIES = {"loadgen": ("-lssl", "-lcrypto"), "tls_crowd": ("-lssl", "-lcrypto")}
"""Of programs whose clients speak TLS."""
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


class Unavailable(Exception):
    """Something that a benchmark needs is not on this machine; the message says what to do."""


def work_folder() -> Path:
    """`.bench/`, which ignores itself in git."""
    WORK.mkdir(exist_ok=True)
    (WORK / ".gitignore").write_text("*\n")
    return WORK


def options(values: Mapping[str, float]) -> list[str]:
    """Numbers as a command takes them: `--broker-pid 7`; `_` stands for `-`."""
    return [
        word
        for name, value in values.items()
        for word in (f"--{name.replace('_', '-')}", f"{value:.12g}")
    ]


def build(name: str, *, shared: bool = False) -> Path:
    """Path of the program built from `name`.c, compiled now unless it has been already.

    `shared`: it is a library.
    """
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise Unavailable(
            "no C compiler (cc, gcc, clang) on PATH; "
            "Debian: apt-get install gcc libc6-dev libssl-dev"
        )
    sources = [HERE / f"{name}.c", *(HERE / header for header in HEADERS)]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    program = work_folder() / "bin" / f"{sources[0].stem}-{digest}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        fresh = program.with_suffix(".new")
        flags = (*FLAGS, "-shared", "-fPIC") if shared else FLAGS
        command = [
            compiler,
            *flags,
            "-o",
            str(fresh),
            str(sources[0]),
            *LIBRARIES.get(name, ()),
            "-lm",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            needs = " (Debian: apt-get install libssl-dev)" if name in LIBRARIES else ""
            raise Unavailable(f"{compiler} could not build {name}.c{needs}:\n{done.stderr}")
        fresh.rename(program)
    return program
