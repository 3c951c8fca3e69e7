"""Drives `sleepers.c`, whose sessions go and come back; and a log in which much waits for them."""

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks import machine
from benchmarks.brokers import Running
from benchmarks.build import build, options
from benchmarks.overload.flood import Latency, next_line
from benchmarks.overload.subject import Subject
from benchmarks.runner import BadData
from benchmarks.store.filling import BATCH, EXPIRY_S, client_id, open_store
from flowguard.records import NEVER_S, AppendToLog, PutLogPlace, PutSession, PutSubscription
from flowguard.types import Publish, SubscriptionOptions

FILTER: Final = "fleet/#"
"""What sleepers subscribe to."""
PAYLOAD_BYTES: Final = 112
THRESHOLD: Final = "FLOWGUARD_SESSION__LOG_THRESHOLD"


@dataclass(frozen=True)
class Phase:
    took_s: float
    finished: int
    """Sessions that did all that they were to do."""
    received: int
    refusals: int
    """CONNACKs that told somebody to come back later."""
    first_ms: Latency
    """From connect() to the first message."""
    broker_cpu_s: float


@dataclass
class Sleepers:
    """A running generator of them."""

    process: subprocess.Popen[str]

    def begin(self, kind: Literal["sleep", "wake"], each: int, limit_s: float) -> None:
        """Begin a phase; see sleepers.c."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind} {each} {limit_s:.12g}\n")
        self.process.stdin.flush()

    def end(self) -> Phase:
        """Wait for its end. Raises `BadData` where a connection was lost."""
        line = next_line(self.process)
        if line["lost"]:
            raise BadData(f"{line['lost']} connections were lost: {line['first_error']}")
        known = line["first_ms"]
        first_ms = Latency(known["count"], known["p50"], known["p99"], known["max"])
        return Phase(
            line["took_s"],
            line["finished"],
            line["received"],
            line["refusals"],
            first_ms,
            line["broker_cpu_s"] or 0.0,
        )

    def phase(self, kind: Literal["sleep", "wake"], each: int, limit_s: float) -> Phase:
        self.begin(kind, each, limit_s)
        return self.end()


@contextmanager
def sleeping(broker: Running, core: int | None, /, **values: float) -> Iterator[Sleepers]:
    """The generator against a broker; `values` are options of sleepers.c, `_` for `-`."""
    words = options({"port": broker.port, "broker-pid": broker.pid, **values})
    with machine.pinned(core):
        process = subprocess.Popen(
            [str(build("sleepers")), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield Sleepers(process)
        finally:
            process.kill()


@dataclass(frozen=True)
class Filled(Subject):
    """A broker that finds sessions on the disk, and `messages` in the log behind each of them."""

    sessions: int = 1
    messages: int = 1_000
    on_disk: bool = True

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        fill(folder / "data", self.sessions, self.messages)
        return super().command(port, folder, scenario)


def fill(folder: Path, sessions: int, messages: int) -> None:
    """Sessions whose clients are away, and after that so many messages in the log."""
    store = open_store(folder, disk_reserve_bytes=0)
    wanted = SubscriptionOptions(qos=1)
    for name in map(client_id, range(sessions)):
        session = PutSession(name, EXPIRY_S, 2.0**40)
        store.commit([session, PutSubscription(name, FILTER, wanted), PutLogPlace(name, None)])
    for start in range(0, messages, BATCH):
        store.commit(
            [
                AppendToLog(f"p{number % 100}", message(number), NEVER_S)
                for number in range(start, min(start + BATCH, messages))
            ]
        )
    store.close()


def message(number: int) -> Publish:
    return Publish(f"fleet/{number % 1_000}/state", secrets.token_bytes(PAYLOAD_BYTES), 1)
