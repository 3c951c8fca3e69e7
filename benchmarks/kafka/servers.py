"""A real Apache Kafka of a run's or a test's own: on free ports, ended by process id.

Its jars come from Maven: `make kafka`. Each node is broker and controller in one.
"""

import asyncio
import base64
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks import machine
from benchmarks.brokers import free_ports
from benchmarks.build import Unavailable
from spark_analysis.java import find_java
from spark_analysis.terminal import JobFailed

PEERS = Path(__file__).resolve().parents[2] / ".peers"
JARS = PEERS / "kafka"
FORMATTED = JARS / "formatted"
PATIENCE_S: Final = 900.0
"""How long it may take to start or to end: on a starved machine, too, only a hang takes longer."""
SMALL_JVM: Final = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Little memory, and a quick start."""
PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # Failures are noticed within seconds, and little memory is taken.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # On a starved machine a node may need minutes to take part; after 60 s it would end.
    "initial.broker.registration.timeout.ms": "1200000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.retention.check.interval.ms": "500",
    # Also the time between two checks for deleted logs. With 0 an idle node takes 7.5 % of a core
    # instead of 2.6 %.
    "log.segment.delete.delay.ms": "100",
}

_ANSWER_MS: Final = 60_000
"""How long an answer may take: most callers ask once."""
MADE: Final = {0, 36}
"""Answers to who makes a topic: it is there now, or was already."""
UNDECIDED: Final = {7, 41}
"""It took too long, or there is no controller now: it may be asked again."""


@cache
def java() -> str:
    """The program; to ask each time for its version takes a start of it. Raises JobFailed."""
    return str(find_java().home / "bin" / "java")


def check_kafka() -> None:
    """Raises `Unavailable` where there is no Java, no server, or no client."""
    try:
        java()
    except JobFailed as error:
        raise Unavailable(
            "Java 17 is missing, on which Kafka runs: make test installs it"
        ) from error
    if not (FORMATTED / "bootstrap.checkpoint").exists():
        raise Unavailable("Kafka's jars are missing: make kafka fetches them with Maven")
    try:
        import aiokafka  # noqa: F401 -- whether it is there
    except ImportError as error:
        raise Unavailable("aiokafka is missing: pip install 'flowguard-mqtt[kafka]'") from error


class KafkaNode:
    """One process; `properties` are those of server.properties, `jvm` options of Java."""

    def __init__(
        self, folder: Path, port: int, properties: dict[str, str], jvm: Sequence[str]
    ) -> None:
        self.folder = folder
        self.port = port
        self.properties = properties
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it, with what it has kept; `Kafka.wait_until_ready` says when it answers."""
        data = self.folder / "data"
        if not data.exists():
            data.mkdir(parents=True)
            shutil.copy(FORMATTED / "bootstrap.checkpoint", data)
            own_id = base64.urlsafe_b64encode(b"fg" + os.urandom(14)).decode().rstrip("=")
            lines = (FORMATTED / "meta.properties").read_text().splitlines()
            own = {"node.id": self.properties["node.id"], "directory.id": own_id}
            kept = [line for line in lines if line.partition("=")[0] not in own]
            _write(data / "meta.properties", own, kept)
        path = self.folder / "server.properties"
        _write(path, {**self.properties, "log.dirs": str(data)})
        with (self.folder / "kafka.log").open("ab") as out:
            self._process = subprocess.Popen(
                [java(), *self._jvm, "-cp", f"{JARS}/*", "kafka.Kafka", str(path)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )

    def check(self) -> None:
        """Fail where it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            log = (self.folder / "kafka.log").read_text()[-2_000:]
            raise AssertionError(f"Kafka ended with {self._process.returncode}: {log}")

    def kill(self) -> None:
        """End it as power does not: the operating system keeps what was written."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order: its partitions have other leaders before it goes."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def leave(self) -> None:
        """Let it run on when this process has ended; from now on it is nobody's child."""
        assert self._process is not None
        self._process.returncode = 0  # Popen warns of what it leaves.
        self._process = None

    def cpu_s(self) -> float:
        """Processor time it has used."""
        assert self._process is not None
        return machine.cpu_s(self._process.pid)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            process.wait(PATIENCE_S)


class Kafka:
    """Nodes that make one Kafka, in `folder`; `properties` are added to those of each."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        properties: dict[str, str] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        ports = free_ports(2 * nodes)
        voters = ",".join(f"{i + 1}@127.0.0.1:{ports[nodes + i]}" for i in range(nodes))
        replicas = {"replication.factor": str(nodes), "min.isr": str(min(nodes, 2))}
        self.nodes = []
        for index in range(nodes):
            broker, controller = ports[index], ports[nodes + index]
            address = f"PLAINTEXT://127.0.0.1:{broker}"
            own = {
                "node.id": str(index + 1),
                "controller.quorum.voters": voters,
                "listeners": f"{address},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": address,
                "offsets.topic.replication.factor": replicas["replication.factor"],
                **{f"transaction.state.log.{name}": value for name, value in replicas.items()},
            }
            all_of_them = {**PROPERTIES, **own, **(properties or {})}
            self.nodes.append(KafkaNode(folder / str(index + 1), broker, all_of_them, jvm))

    @property
    def servers(self) -> str:
        """Addresses as clients take them: HOST:PORT,..."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> "Kafka":
        for node in self.nodes:
            node.start()
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        """Wait until all running nodes take part: an open port is not yet a server."""
        for node in self.nodes:
            while node.is_running and not _is_open(node.port):
                node.check()
                time.sleep(0.05)
        running = sum(node.is_running for node in self.nodes)
        until(self, lambda admin: _has_brokers(admin, running))

    def call(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        """What `work(admin)` returns; the admin is aiokafka's, for looking and breaking things."""
        return asyncio.run(self._call(work))

    async def _call(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        from aiokafka.admin import AIOKafkaAdminClient

        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers, request_timeout_ms=_ANSWER_MS)
        try:
            await admin.start()
            return await work(admin)
        finally:
            await admin.close()

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        """A topic on all nodes, ready to be written; `configs` with _ for each dot."""
        from aiokafka.admin import NewTopic

        settings = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name, partitions, len(self.nodes), topic_configs=settings)

        async def is_made(admin: Any) -> bool:
            (answer,) = (await admin.create_topics([topic])).topic_errors
            assert answer[1] in MADE | UNDECIDED, answer
            return answer[1] in MADE

        until(self, is_made)
        until(self, lambda admin: _is_ready(admin, name, len(self.nodes)))

    def remove(self) -> None:
        for node in self.nodes:
            node.kill()


def until(kafka: Kafka, condition: Callable[[Any], Awaitable[bool]]) -> None:
    """Wait until `condition(admin)` holds; a server that is not ready yet may refuse to answer."""
    from aiokafka.errors import KafkaError

    end_s = time.monotonic() + PATIENCE_S
    while True:
        for node in kafka.nodes:
            node.check()
        with suppress(KafkaError, TimeoutError):
            if kafka.call(condition):
                return
        assert time.monotonic() < end_s
        time.sleep(0.05)


async def _has_brokers(admin: Any, count: int) -> bool:
    return len((await admin.describe_cluster())["brokers"]) >= count


async def _is_ready(admin: Any, topic: str, replicas: int) -> bool:
    """Whether each node knows the topic, and one that its partitions have leaders and replicas."""
    from flowguard.stores.kafka.connection.driver import topic_seen

    (found,) = await admin.describe_topics([topic])
    parts = found["partitions"]
    ready = [part["leader"] >= 0 and len(part["isr"]) == replicas for part in parts]
    nodes = [node["node_id"] for node in (await admin.describe_cluster())["brokers"]]
    seen = [await topic_seen(admin, topic, node) for node in nodes]
    return bool(parts) and all(ready) and None not in seen


def _is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _write(path: Path, properties: dict[str, str], lines: list[str] | None = None) -> None:
    said = [f"{key}={value}" for key, value in properties.items()]
    path.write_text("\n".join([*(lines or []), *said, ""]))
