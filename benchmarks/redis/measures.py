"""What is asked of each subject, one after the other, by one client in one thread."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.redis.postgres import Placed
from benchmarks.redis.subjects import POSTGRES_EACH, Ours, Subject

SESSIONS: Final = 1_000
BATCH: Final = 200
DEPTHS: Final = (1, 100, 1_000)
"""Messages that are queued for each session, when memory is measured."""
DEEP: Final = 10_000
RATE_PER_S: Final = 5_000
BATCH_MAX: Final = 1_000
MANY: Final = 100_000
"""Sessions that a broker starts with."""
SLOW_SHARE: Final = 10
"""One part in so many of the messages is enough where each has a commit of its own."""


@dataclass(frozen=True)
class Cost:
    """Processor time per message, microseconds."""

    client_us: float
    server_us: float


@dataclass(frozen=True)
class Paced:
    """From a message that arrives to its commit, milliseconds; None: it cannot keep up."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Start:
    """From opening the store to the last of its sessions."""

    seconds: float
    client_s: float
    server_s: float


@dataclass(frozen=True)
class Fetched:
    """All of a deep queue."""

    wall_ms: float
    cost: Cost


class Clock:
    """Processor time since it was made, of client and server."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._server_s = subject.server_cpu_s()
        self._client_s = time.process_time()

    def cost(self, messages: int) -> Cost:
        client_s = time.process_time() - self._client_s
        server_s = self._subject.server_cpu_s() - self._server_s
        return Cost(1e6 * client_s / messages, 1e6 * server_s / messages)


def client_name(number: int) -> str:
    return f"client-{number}"


def batches(messages: int, sessions: int = SESSIONS) -> Iterator[list[Placed]]:
    """Client id and position of each message: to all sessions in turn."""
    for start in range(0, messages, BATCH):
        numbers = range(start, min(start + BATCH, messages))
        yield [(client_name(number % sessions), number // sessions + 1) for number in numbers]


def share_of(name: str, messages: int) -> int:
    return messages // SLOW_SHARE if name == POSTGRES_EACH else messages


def begin(subject: Subject, sessions: int) -> None:
    """What lies there before a message comes."""
    if isinstance(subject, Ours):
        subject.begin([client_name(number) for number in range(sessions)])


def cost_of(subject: Subject, messages: int) -> tuple[Cost, Cost]:
    """To queue all messages, then to settle them."""
    begin(subject, SESSIONS)
    clock = Clock(subject)
    for batch in batches(messages):
        subject.queue(batch)
    queued = clock.cost(messages)
    clock = Clock(subject)
    for batch in batches(messages):
        subject.settle(batch)
    return queued, clock.cost(messages)


def bytes_of(subject: Subject, messages: int, depth: int) -> float:
    """Memory of the server for each message, with so many queued for each session."""
    sessions = messages // depth
    begin(subject, sessions)
    before = subject.used_bytes()
    for batch in batches(messages, sessions):
        subject.queue(batch)
    after = subject.used_bytes()
    assert before is not None
    assert after is not None
    return (after - before) / messages


def fetched(subject: Subject, messages: int = DEEP) -> Fetched:
    """One client comes back, for whom all of them wait."""
    for start in range(0, messages, BATCH):
        subject.queue([("deep", pos + 1) for pos in range(start, start + BATCH)])
    clock, began_s = Clock(subject), time.perf_counter()
    count = subject.fetch("deep")
    wall_s = time.perf_counter() - began_s
    assert count == messages, f"{count} of {messages}"
    return Fetched(1e3 * wall_s, clock.cost(messages))


def paced(subject: Subject, seconds: float) -> Paced | None:
    """Messages arrive at RATE_PER_S; whatever has arrived is one commit."""
    begin(subject, SESSIONS)
    total = round(seconds * RATE_PER_S)
    waited_s: list[float] = []
    began_s = time.perf_counter()
    done = 0
    while done < total:
        passed_s = time.perf_counter() - began_s
        if passed_s > 2 * seconds + 1:
            return None
        count = min(int(passed_s * RATE_PER_S), total, done + BATCH_MAX) - done
        if count <= 0:
            time.sleep(0.5 / RATE_PER_S)
            continue
        numbers = range(done, done + count)
        subject.queue([(client_name(n % SESSIONS), n // SESSIONS + 1) for n in numbers])
        passed_s = time.perf_counter() - began_s
        waited_s += [passed_s - number / RATE_PER_S for number in numbers]
        done += count
    waited_s.sort()
    return Paced(1e3 * waited_s[total // 2], 1e3 * waited_s[total * 99 // 100])


def started(subject: Ours, folder: Path) -> Start:
    """Open it once more, with MANY sessions in it, and read them all."""
    begin(subject, MANY)
    subject.close()
    server_s, client_s, began_s = subject.server_cpu_s(), time.process_time(), time.perf_counter()
    subject.reopen(folder)
    count = subject.count_sessions()
    wall_s = time.perf_counter() - began_s
    assert count == MANY, f"{count} of {MANY}"
    client_s = time.process_time() - client_s
    return Start(wall_s, client_s, subject.server_cpu_s() - server_s)
