"""The broker under test: one policy, a process and a core of its own."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.brokers import Broker, Running
from benchmarks.build import options
from benchmarks.peers import COMPILED

from .store import COMMIT_S, MESSAGE_S

ROOT = Path(__file__).resolve().parents[2]
POLICY_VARIABLE = "FLOWGUARD_FLOW__POLICY"


@dataclass(frozen=True)
class Instance(Running):
    def rows(self, since_s: float = 0.0) -> list[dict[str, Any]]:
        return [row for row in rows_of(self.log) if row["at_s"] >= since_s]

    def press(self) -> None:
        """Hold it under the highest pressure there is."""
        os.kill(self.pid, signal.SIGUSR1)


def rows_of(log: Path) -> list[dict[str, Any]]:
    """The lines of JSON in it; the last one may not be whole yet."""
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@dataclass(frozen=True)
class Subject(Broker):
    """flowguard under `policy`; `settings` are `FLOWGUARD_...` variables."""

    policy: str = "flowguard"
    settings: Mapping[str, str] = field(default_factory=dict)
    commit_s: float = COMMIT_S
    """0: a store in memory that never waits."""
    message_s: float = MESSAGE_S
    on_disk: bool = False
    """In RocksDB instead, with whatever the disk takes."""
    row_s: float = 1.0
    """How often it says how it is."""

    name = "flowguard"
    reports_port = True

    def prepare(self) -> str:
        return ""

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        source = COMPILED if (COMPILED / "flowguard").is_dir() else ROOT / "src"
        variables = {
            POLICY_VARIABLE: self.policy,
            "PYTHONPATH": f"{source}:{ROOT}",
            **self.settings,
        }
        commit_ms, message_us = self.commit_s * 1e3, self.message_s * 1e6
        numbers = {"port": port, "commit-ms": commit_ms, "message-us": message_us}
        words = [f"{name}={text}" for name, text in variables.items()]
        words += [sys.executable, "-m", "benchmarks.overload.broker"]
        words += options({**numbers, "row-s": self.row_s})
        return ["env", *words, *(("--data", str(folder / "data")) if self.on_disk else ())]

    @contextmanager
    def started(self, core: int | None) -> Iterator[Instance]:
        """Until the block ends."""
        with self.running(core, "overload") as running:
            yield Instance(**vars(running))
