"""A command to a fleet that sleeps, and the first message of a session that has missed much."""

import time
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.checks import Grid, Report, at_most
from benchmarks.conditions import Conditions
from benchmarks.overload.subject import Subject
from benchmarks.runner import BadData
from benchmarks.store.filling import client_id
from benchmarks.store.reconnect import Client
from flowguard.codec import Puback
from flowguard.types import Publish

from .sleepers import PAYLOAD_BYTES, THRESHOLD, Filled, Phase, sleeping

KEY: Final = "log-fleet"
FLEET: Final = 10_000
LIMIT_S: Final = 120.0
BEHIND: Final = 1_000_000
COMERS: Final = 10
"""Sessions with all of that behind them, which come one after the other."""
FLEET_S: Final = 3.0
FIRST_MS: Final = 20.0


@dataclass(frozen=True)
class Command:
    where: str
    puback_ms: float
    """Until the publisher was acknowledged."""
    awake: Phase


@dataclass(frozen=True)
class Fleet:
    sessions: int
    behind: int
    commands: tuple[Command, ...]
    first_ms: tuple[float, ...]

    def report(self) -> Report:
        rows = [
            (
                command.where,
                f"{command.puback_ms:.1f}",
                f"{command.awake.took_s:.2f}",
                f"{command.awake.broker_cpu_s:.2f}",
                f"{command.awake.first_ms.p50:.0f}",
                f"{command.awake.first_ms.p99:.0f}",
            )
            for command in self.commands
        ]
        return Report(
            KEY,
            "The log: a fleet that sleeps",
            f"{self.sessions:,} sessions sleep, one command is published, all of them come back, "
            "64 on their way in at a time, and acknowledge it; until the broker has taken the last "
            f"acknowledgement. Then {len(self.first_ms)} sessions, one after the other, each with "
            f"{self.behind:,} messages behind it: from connect() to the first one.",
            (
                at_most(
                    f"log: {self.sessions:,} sessions have it, and have acknowledged it",
                    self.commands[0].awake.took_s,
                    FLEET_S,
                    " s",
                    2,
                ),
                at_most(
                    f"first message of a session with {self.behind:,} behind it",
                    median(self.first_ms),
                    FIRST_MS,
                    " ms",
                    1,
                ),
            ),
            (
                Grid(
                    (
                        "where",
                        "PUBACK of the command, ms",
                        "all acknowledged, s",
                        "CPU of the broker, s",
                        "first message p50, ms",
                        "p99, ms",
                    ),
                    tuple(rows),
                ),
                Grid(
                    ("first message, ms", "least", "median", "most"),
                    (
                        (
                            f"{self.behind:,} behind it",
                            *(f"{of(self.first_ms):.1f}" for of in (min, median, max)),
                        ),
                    ),
                ),
            ),
        )


def publish(port: int) -> float:
    """Publish the command; ms until it was acknowledged."""
    commander = Client(port, "commander")
    began_s = time.perf_counter()
    commander.send(Publish("fleet/all/command", bytes(PAYLOAD_BYTES), 1, packet_id=1))
    answer = next(commander.packets())
    if not isinstance(answer, Puback) or answer.reason_code:
        raise BadData(f"the command was answered by {answer}")
    took_s = time.perf_counter() - began_s
    commander.leave()
    return took_s * 1e3


def measure_command(where: str, threshold: int, sessions: int, conditions: Conditions) -> Command:
    subject = Subject(on_disk=True, settings={THRESHOLD: str(threshold)})
    with (
        subject.started(conditions.broker_core) as broker,
        sleeping(broker, conditions.generator_core, sessions=sessions) as fleet,
    ):
        fleet.phase("sleep", 0, LIMIT_S)
        puback_ms = publish(broker.port)
        awake = fleet.phase("wake", 1, LIMIT_S)
    if awake.finished < sessions or awake.received != sessions:
        raise BadData(f"{awake.finished:,} of {sessions:,} got it, {awake.received:,} messages")
    return Command(where, puback_ms, awake)


def first_message_ms(port: int, name: str) -> float:
    began_s = time.perf_counter()
    client = Client(port, name)
    first = next(client.packets())
    took_s = time.perf_counter() - began_s
    if not isinstance(first, Publish) or not first.topic.startswith("fleet/"):
        raise BadData(f"instead of the first message came {first}")
    client.leave()
    return took_s * 1e3


def measure(conditions: Conditions) -> Fleet:
    sessions, behind = conditions.count(FLEET), conditions.count(BEHIND)
    commands = tuple(
        measure_command(where, threshold, sessions, conditions)
        for where, threshold in (("log", 16), ("client queues", 0))
    )
    subject = Filled(settings={THRESHOLD: "1"}, sessions=COMERS, messages=behind)
    with subject.started(conditions.broker_core) as broker:
        first_ms = tuple(first_message_ms(broker.port, client_id(n)) for n in range(COMERS))
    return Fleet(sessions, behind, commands, first_ms)
