"""Nodes of a cluster, each the process of a supervisor with its workers."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

from benchmarks.brokers import are_free as are_free
from benchmarks.brokers import free_block as free_block
from benchmarks.brokers import free_ports
from tests.interop.broker import OURS, start
from tests.torture.wire import HOST
from tests.torture.workers import wait_for_end

SHARDS = 3
SETTINGS: dict[str, dict[str, Any]] = {
    "session": {"queue_messages_max": 1_000_000, "queue_bytes_max": 2**28, "inflight_max": 100},
    "node": {"queue_bytes_max": 2**30},
    "cluster": {"shards": SHARDS},
}
WRONG_CLOCK = Path(__file__).with_name("wrong_clock")


@dataclass(frozen=True)
class Setup:
    """Facts about a node besides its ports."""

    url: str
    """The address of Redis."""
    host: str = HOST
    program: Sequence[str] = OURS
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_clock: bool = False
    """True if the wall clock of the node can be set."""


class Node:
    """One node, over all its processes."""

    def __init__(self, folder: Path, setup: Setup, name: str, taken: set[int]) -> None:
        """`taken` are the ports of the other nodes; those of this one are added."""
        self.name = name
        self.host = setup.host
        self.folder = folder / name
        self.folder.mkdir()
        self.log = self.folder / "log"
        while True:
            first = free_block(2 * SHARDS)
            self.port, self.http = free_ports(2)
            ports = [*range(first, first + 2 * SHARDS), self.port, self.http]
            if len(set(ports)) == len(ports) and taken.isdisjoint(ports):
                break
        taken.update(ports)
        self.address = f"{self.host}:{first}"
        self._setup = setup
        self._clock = self.folder / "clock"
        self.set_clock(0.0)
        self._process: Any = None
        self.started_s = 0.0
        self.is_stopped = False
        self.is_ending = False
        self._pids: list[int] = []

    def set_clock(self, offset_s: float) -> None:
        """Let the wall clock of all processes be wrong by `offset_s` from now on."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(str(offset_s))
        fresh.replace(self._clock)

    def start(self) -> None:
        setup = self._setup
        self.started_s = time.monotonic()
        variables = {
            f"FLOWGUARD_{section.upper()}__{name.upper()}": str(value)
            for settings in (SETTINGS, setup.settings)
            for section, values in settings.items()
            for name, value in values.items()
        }
        if setup.has_clock:
            paths = [str(WRONG_CLOCK), os.environ.get("PYTHONPATH", "")]
            variables |= {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "WRONG_CLOCK": str(self._clock),
            }
        with self.log.open("a") as log:
            self._process = start(
                *("serve", "--workers", str(SHARDS), "--listen", f"{self.host}:{self.port}"),
                *("--data", str(self.folder / "data"), "--http", f"{self.host}:{self.http}"),
                *("--cluster", self.address, "--store", "redis", "--redis-url", setup.url),
                environment=variables,
                stderr=log,
                program=setup.program,
            )
        self.is_ending = False

    @property
    def for_clients(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_to_be_reaped(self) -> bool:
        return self._process is not None and not self.is_alive

    @property
    def serves(self) -> bool:
        return self.is_alive and not self.is_stopped and not self.is_ending

    def workers(self) -> list[int]:
        pid = self._process.pid
        with suppress(OSError):
            return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def kill(self) -> None:
        pids = self.workers()
        self._process.kill()
        for pid in pids:
            wait_for_end(pid)
        self._process.communicate()
        self._process = None

    def kill_worker(self, random: Random) -> bool:
        pids = self.workers()
        if pids:
            os.kill(random.choice(sorted(pids)), SIGKILL)
        return bool(pids)

    def stop(self) -> None:
        self._pids = [self._process.pid, *self.workers()]
        self.is_stopped = True
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGCONT)
        self.is_stopped = False

    def terminate(self) -> None:
        self.is_ending = True
        self._process.send_signal(SIGTERM)

    def reap(self) -> int:
        code = int(self._process.wait(1))
        self._process.communicate()
        self._process = None
        return code

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.http}{path}", timeout=5
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    @property
    def is_whole(self) -> bool:
        """Ready, and it sees no shard that is down."""
        ready, _ = self.get("/ready")
        found, text = self.get("/cluster")
        return ready == 200 and found == 200 and not json.loads(text)["down"]


def has_ended(node: Node) -> bool:
    return not node.is_alive
