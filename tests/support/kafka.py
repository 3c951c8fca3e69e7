"""A real Apache Kafka of a test's own (`benchmarks.kafka.servers`), or the test is skipped."""

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from benchmarks.build import Unavailable
from benchmarks.kafka.servers import JARS, PEERS, SMALL_JVM, Kafka, KafkaNode, check_kafka
from tests.support.patience import HANG_S
from tests.support.reaper import VARIABLE

__all__ = ["PEERS", "Kafka", "KafkaNode", "jvm", "kafka", "needs_kafka", "shared", "shared_kafka"]

T = TypeVar("T")


def needs_kafka() -> None:
    """Skip the test without Java, a server, or a client."""
    try:
        check_kafka()
    except Unavailable as error:
        pytest.skip(str(error))


NEVER_FENCED = {"broker.session.timeout.ms": str(int(HANG_S * 1_000))}
"""For a node that is not killed: after a pause of the machine it is still the leader. A restarted
one would have to wait for this time."""
REQUEST_BYTES_MAX = 32 * 1024 * 1024
"""Largest request that the shared node takes. Kafka's own limit is 100 MiB."""


@cache
def jvm() -> tuple[str, ...]:
    """Return options for Java. With its classes from an archive, made once, a start of a node takes
    1.35 s of processor time, not 2.4. If the archive does not fit any more, Java goes without."""
    archive = JARS / "classes.jsa"
    with (JARS / "classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=JARS) as folder:
                made = Path(folder) / archive.name
                node = Kafka(Path(folder), jvm=(*SMALL_JVM, f"-XX:ArchiveClassesAtExit={made}"))
                node.start().nodes[0].stop()
                made.rename(archive)
    return (*SMALL_JVM, f"-XX:SharedArchiveFile={archive}")


@contextmanager
def kafka(
    folder: Path, nodes: int = 1, properties: dict[str, str] | None = None
) -> Iterator[Kafka]:
    """A started Kafka; killed at the end."""
    needs_kafka()
    found = Kafka(folder, nodes, properties, jvm())
    try:
        yield found.start()
    finally:
        found.remove()


def shared(name: str, make: Callable[[Path], T]) -> T:
    """Return what `make(folder)` returned in the first process of a run of tests that asked for
    this name."""
    needs_kafka()
    run = os.environ[VARIABLE].split()[-1]
    folder = Path(tempfile.gettempdir()) / f"{name}-{run}"
    folder.mkdir(exist_ok=True)
    started = folder / "started"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not started.exists():
            started.write_bytes(pickle.dumps(make(folder)))
        found: T = pickle.loads(started.read_bytes())
    return found


@cache
def shared_kafka() -> Kafka:
    """Return one node for all processes of a run of tests, started by the first one; a topic per
    test.

    An idle one takes 2.6 % of a core. The reaper ends it.
    """
    return shared("kafka", _start)


def _start(folder: Path) -> Kafka:
    properties = {**NEVER_FENCED, "socket.request.max.bytes": str(REQUEST_BYTES_MAX)}
    found = Kafka(folder, properties=properties, jvm=jvm()).start()
    for node in found.nodes:
        node.leave()
    return found
