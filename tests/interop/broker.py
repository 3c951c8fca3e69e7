"""The real broker as a process of its own: started as a user starts it, ended by SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flowguard import build
from tests.support.forks import Fork
from tests.support.patience import HANG_S

PATIENCE_S = HANG_S
ANNOUNCEMENT = "listening on "
PURE = "pure Python"
OURS = (sys.executable, "-m", "flowguard")
WORKERS_UNDER_TEST = os.environ.get("WORKERS_UNDER_TEST")
"""The number of workers of each broker whose test names none, or None."""
WORKERS = (int(WORKERS_UNDER_TEST),) if WORKERS_UNDER_TEST else (1, 2)
"""Numbers of workers of the brokers that other clients are tested with."""


@cache
def _is_compiled(stamped_ns: int) -> bool:
    """Return True if the build with a stamp of this time is that of the sources.

    The sources do not change during a run, and reading them takes 40 ms.
    """
    return build.is_up_to_date(build.CHECKOUT)


def start(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stderr: Any = subprocess.PIPE,
    program: Sequence[str] = OURS,
) -> "subprocess.Popen[str]":
    """`flowguard ARGUMENTS` with piped output, in `environment_with(environment)`."""
    return subprocess.Popen(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment_with(environment),
    )


def environment_with(environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a program, without settings but these.

    It runs the compiled packages if they match the sources; if BUILD_UNDER_TEST is set, that build.
    """
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FLOWGUARD_")}
    wanted = os.environ.get("BUILD_UNDER_TEST")
    stamp = build.CHECKOUT / build.ROOMS / build.STAMP
    if wanted == PURE:
        clean["FLOWGUARD_PURE"] = "1"
    elif wanted is None and stamp.exists() and _is_compiled(stamp.stat().st_mtime_ns):
        rooms = str(build.CHECKOUT / build.ROOMS)
        clean["PYTHONPATH"] = os.pathsep.join(filter(None, [rooms, clean.get("PYTHONPATH")]))
    return {**clean, **(environment or {})}


@dataclass
class Broker:
    """A running broker."""

    process: "subprocess.Popen[str]"
    host: str
    port: int
    log: Path
    workers: int = 1
    ports: tuple[int, ...] = ()
    """The ports of all nodes of a cluster, among which clients alternate."""

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def wait_for_log(self, text: str) -> None:
        """Until it has written that."""
        deadline_s = time.monotonic() + PATIENCE_S
        while text not in self.log.read_text():
            assert self.process.poll() is None
            assert time.monotonic() < deadline_s, f"{text!r} is not in its log"
            time.sleep(0.02)


def address_in(line: str) -> tuple[str, int]:
    """Host and port of a line `listening on HOST:PORT SCHEME`."""
    host, _, port = line.removeprefix(ANNOUNCEMENT).split()[0].rpartition(":")
    return host.strip("[]"), int(port)


@contextmanager
def running_broker(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    exit_code: int = 0,
    program: Sequence[str] = OURS,
    listen: bool = True,
) -> Iterator[Broker]:
    """A broker on a free port, its files in `folder`; a fork, or started by `program`.

    Not `listen`: it listens where its configuration says. Without `--workers` it has as many
    as WORKERS_UNDER_TEST says.

    Whoever ends it, it must end with `exit_code`, without a traceback. It drains at the end of the
    block if it has not been told before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "stderr.txt"
    if WORKERS_UNDER_TEST and "--workers" not in arguments:
        arguments = (*arguments, "--workers", WORKERS_UNDER_TEST)
    listeners = ("--listen", "127.0.0.1:0") if listen and "--listen" not in arguments else ()
    words = ("serve", *listeners, "--data", str(folder / "data"), *arguments)
    with log.open("w") as stderr:
        if program is OURS:
            process: subprocess.Popen[str] = Fork(words, environment_with(environment), stderr)
        else:
            process = start(*words, environment=environment, stderr=stderr, program=program)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(ANNOUNCEMENT), line + log.read_text()
        host, port = address_in(line)
        broker = Broker(process, host, port, log)
        yield broker
        if process.poll() is None:
            broker.terminate()
        assert process.returncode == exit_code, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.communicate()
