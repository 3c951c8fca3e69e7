"""Brokers whose applications are in Kafka, in the log, and on TBMQ's way; and the Kafka they share.

Kafka is on the generator's core, and what it takes is counted apart.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import machine
from benchmarks.brokers import Broker
from benchmarks.kafka.servers import Kafka, check_kafka
from benchmarks.peers import COMPILED, FlowguardCompiled
from benchmarks.store.filling import EXPIRY_S
from flowguard.app.stores import open_store
from flowguard.config import Settings
from flowguard.records import (
    NEVER_S,
    Append,
    AppendToLog,
    Delivery,
    PutLogPlace,
    PutSession,
    PutSubscription,
    StoreOp,
)
from flowguard.types import Publish, SubscriptionOptions

JVM: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC")
"""Unlike in tests, code that runs often is compiled twice, as on a server."""
FLOOD, SLEEPERS = "bench-*-s*", "s0*"
"""Client ids of the subscribers of flood.c, and of sleepers.c."""
SLEEPER: Final = "s0000000"
PAYLOAD_BYTES: Final = 112
FILL_BATCH: Final = 5_000


@contextmanager
def kafka_server(nodes: int, core: int | None) -> Iterator[Kafka]:
    """A Kafka of the run's own. Raises `Unavailable`."""
    check_kafka()
    with TemporaryDirectory(prefix="flowguard-bench-") as name:
        server = Kafka(Path(name), nodes, jvm=JVM)
        try:
            with machine.pinned(core):
                server.start()
            yield server
        finally:
            server.remove()


class OnLog(FlowguardCompiled):
    """`behind`: so many messages wait for one application, which has subscribed to everything."""

    name = "flowguard, applications in its log"

    def __init__(self, *applications: str, behind: int = 0) -> None:
        """`applications`: patterns of their client ids."""
        self._behind = behind
        self._patterns = [*applications]

    def _settings(self) -> dict[str, dict[str, object]]:
        return {"session": {"application_client_ids": self._patterns}}

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        settings, file = self._settings(), folder / "config.toml"
        lines = [
            line
            for section, keys in settings.items()
            for line in (f"[{section}]", *(f"{key} = {value!r}" for key, value in keys.items()))
        ]
        file.write_text("\n".join([*lines, ""]))
        if self._behind:
            self._fill(Settings.model_validate(settings), folder / "data")
        return [*super().command(port, folder, scenario), "--config", str(file)]

    def _fill(self, settings: Settings, data: Path) -> None:
        store = open_store(settings, data)
        store.commit(self._first())
        for start in range(0, self._behind, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, self._behind))
            store.commit([self._stored(number) for number in numbers])
        store.close()

    def _first(self) -> list[StoreOp]:
        wanted = PutSubscription(SLEEPER, "#", SubscriptionOptions(qos=1))
        return [PutSession(SLEEPER, EXPIRY_S, 2.0**40, True), wanted, PutLogPlace(SLEEPER, None)]

    def _stored(self, number: int) -> StoreOp:
        return AppendToLog(f"p{number % 100}", message(number), NEVER_S)


class OnKafka(OnLog):
    name = "flowguard, applications in Kafka"
    _numbers = count(1)

    def __init__(self, server: Kafka, *applications: str, behind: int = 0) -> None:
        super().__init__(*applications, behind=behind)
        self._server = server
        self._prefix = ""

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        self._prefix = f"bench{next(self._numbers)}"
        return super().command(port, folder, scenario)

    def _settings(self) -> dict[str, dict[str, object]]:
        kafka = {
            "servers": self._server.servers,
            "prefix": self._prefix,
            "replicas": len(self._server.nodes),
        }
        return {**super()._settings(), "store": {"application_store": "kafka"}, "kafka": kafka}

    def _first(self) -> list[StoreOp]:
        return super()._first()[:2]

    def _stored(self, number: int) -> StoreOp:
        return Append(SLEEPER, number + 1, Delivery(message(number), 1, False, (), NEVER_S))


class Literal(Broker):
    """TBMQ's way, its rooms below (codec) compiled, too."""

    reports_port = True
    _numbers = count(1)

    def __init__(self, server: Kafka, acks: str) -> None:
        self._server = server
        self._acks = acks
        self.name = self.title(acks)

    @staticmethod
    def title(acks: str) -> str:
        return f"TBMQ's way, acks={acks}"

    def prepare(self) -> str:
        return ""

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        root = Path(__file__).resolve().parents[2]
        words = ["env", f"PYTHONPATH={COMPILED}:{root}", sys.executable]
        words += ["-m", "benchmarks.kafka.literal_broker", "--servers", self._server.servers]
        words += ["--acks", self._acks, "--replicas", str(len(self._server.nodes))]
        return [*words, "--prefix", f"literal{next(self._numbers)}", "--port", str(port)]


def message(number: int) -> Publish:
    return Publish(f"fleet/{number % 1_000}/state", token_bytes(PAYLOAD_BYTES), 1)
