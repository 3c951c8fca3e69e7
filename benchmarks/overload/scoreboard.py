"""Scoreboard: a slow subscriber and a connect storm, flowguard and its peers, over plain TCP.

`flowguard storm` puts the load on; this module starts the brokers, watches their memory, and sets
what clients saw side by side. Nothing here knows what kind of broker it talks to.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from benchmarks import machine
from benchmarks.brokers import HOST, Broker, BrokerFailed, Running
from benchmarks.checks import Check, Columns, Grid, Report, at_most, none_of
from benchmarks.conditions import Conditions
from benchmarks.peers import BROKERS, prepared
from benchmarks.report import short
from benchmarks.runner import BadData

KEY = "overload-scoreboard"
OURS = "flowguard"
PEERS = (OURS, "mosquitto", "amqtt")
V311, V5 = "3.1.1", "5.0"
VERSIONS = {"amqtt": (V311,)}
"""Where not both."""
WATCH_S = 0.1
SUBSCRIBERS, SLOW = 10, 1
PAYLOAD_BYTES = 1_024
SLOW_S, CATCH_UP_S = 8.0, 20.0
STORM_CLIENTS, STORM_S = 5_000, 90.0
EXTRA_S = 60.0
MEMORY_MAX_MIB = 64.0
"""One client's queue (16 MiB of content) and outbox (4 MiB) at their bounds, as Python objects."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of a broker around one storm, MiB."""

    before: float
    peak: float
    after: float

    @property
    def growth(self) -> float:
        return self.peak - self.before


@dataclass(frozen=True)
class Score:
    """One broker in one storm; `failure`: why there is no result."""

    broker: str
    version: str
    memory: Memory = Memory(0.0, 0.0, 0.0)
    result: dict[str, Any] = field(default_factory=dict)
    alone: dict[str, Any] = field(default_factory=dict)
    """Slow subscriber: the same storm when everybody reads."""
    failure: str = ""


@dataclass(frozen=True)
class Scoreboard:
    versions: dict[str, str]
    missing: dict[str, str]
    slow: tuple[Score, ...]
    storm: tuple[Score, ...]
    seconds: float
    clients: int

    def report(self) -> Report:
        return Report(
            KEY,
            "Scoreboard: a slow subscriber, a connect storm",
            f"`flowguard storm` against each broker over TCP, a fresh process each. Slow "
            f"subscriber: 1 publisher as fast as it may (QoS 1, {PAYLOAD_BYTES} bytes, 10 "
            f"outstanding) to {SUBSCRIBERS} subscribers for {self.seconds:g} s, {SLOW} of which "
            f"reads nothing until then. Storm: {self.clients:,} clients at once, back-off with "
            "jitter. Versions: "
            + ", ".join(f"{name} {version}" for name, version in self.versions.items())
            + ".",
            tuple(self._checks()),
            (
                scores("slow subscriber", SLOW_COLUMNS, self.slow),
                scores("connect storm", STORM_COLUMNS, self.storm),
            ),
            (
                "Acknowledged, then lost: the publisher was told that the message is safe, and a "
                "subscriber never got it though it stayed connected or was cut off.",
                "Rate kept: acknowledged messages per second beside the slow subscriber, of those "
                "when everybody reads. Silence: the longest time without an acknowledgement.",
                "Recovered: from the last PUBLISH to the last delivery; in the storm, until nobody "
                "tries any more.",
                *(f"{name} could not be had: {why}" for name, why in self.missing.items()),
            ),
        )

    def _checks(self) -> list[Check]:
        slow, storm = ([s for s in found if s.broker == OURS] for found in (self.slow, self.storm))
        checks = []
        for score in slow:
            if not score.failure:
                name = f"slow subscriber, MQTT {score.version}"
                lost, growth = score.result["acknowledged_lost"], score.memory.growth
                checks.append(none_of(f"{name}: acknowledged, then lost", lost))
                checks.append(at_most(f"{name}: memory growth", growth, MEMORY_MAX_MIB, " MiB"))
        for score in storm:
            if not score.failure:
                name, result = f"storm, MQTT {score.version}", score.result
                outside = result["clients"] - result["connected"]
                accidents = result["resets"] + result["closed"] + result["timeouts"]
                checks.append(none_of(f"{name}: clients that did not get in", outside))
                checks.append(none_of(f"{name}: reset or timed out", accidents))
        for score in (*slow, *storm):
            if score.failure:
                checks.append(Check(f"{OURS}, MQTT {score.version}", score.failure, "runs", False))
        return checks


def scores(title: str, columns: Columns[Score], found: tuple[Score, ...]) -> Grid:
    """A row for each broker and version; of one that failed, why."""
    rows = []
    for score in found:
        cells = [cell(score) for cell in columns.values() if not score.failure]
        why = [f"failed: {score.failure}", *[""] * (len(columns) - 1)]
        rows.append((score.broker, score.version, *(cells or why)))
    return Grid((title, "MQTT", *columns), tuple(rows))


def rate_kept(score: Score) -> str:
    rate_alone = per_s(score.alone)
    return f"{per_s(score.result) / rate_alone:.0%}" if rate_alone else "-"


def per_s(result: dict[str, Any]) -> float:
    return float(result["acknowledged"] / max(result["seconds"], 1e-9))


def recovered(result: dict[str, Any]) -> str:
    is_in = result["trying"] == 0 and result["connected"] == result["clients"]
    return f"{result['connect_seconds']:.1f}" if is_in else "never"


SLOW_COLUMNS: Columns[Score] = {
    "acknowledged /s": lambda score: short(per_s(score.result)),
    "rate kept": rate_kept,
    "memory growth MiB": lambda score: f"{score.memory.growth:,.0f}",
    "delivered to the slow one": lambda score: (
        f"{score.result['slow_received']:,} of {score.result['sent']:,}"
    ),
    "acknowledged, then lost": lambda score: f"{score.result['acknowledged_lost']:,}",
    "refused": lambda score: codes(score.result["publish_refusals"]),
    "silence s": lambda score: f"{score.result['silence_seconds']:.1f}",
    "connections lost": lambda score: f"{score.result['lost']:,}",
    "recovered after s": lambda score: f"{score.result['catch_up_seconds']:.1f}",
}
STORM_COLUMNS: Columns[Score] = {
    "in": lambda score: f"{score.result['connected']:,} of {score.result['clients']:,}",
    "told to come back": lambda score: f"{score.result['busy']:,}",
    "refused otherwise": lambda score: codes(score.result["refused"]),
    "reset": lambda score: f"{score.result['resets'] + score.result['closed']:,}",
    "timed out": lambda score: f"{score.result['timeouts']:,}",
    "attempts per client": lambda score: f"{score.result['attempts_mean']:.2f}",
    "p99 ms to connected": lambda score: short(score.result["time_to_connected_ms"]["p99"] or 0.0),
    "memory growth MiB": lambda score: f"{score.memory.growth:,.0f}",
    "recovered after s": lambda score: recovered(score.result),
}


def codes(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} x {code}" for code, count in counts.items()) or "0"


def measure(conditions: Conditions) -> Scoreboard:
    versions, missing = prepared(PEERS)
    seconds = conditions.scaled(SLOW_S)
    clients = max(200, conditions.count(STORM_CLIENTS))
    slow, storm = [], []
    for name in versions:
        for version in VERSIONS.get(name, (V311, V5)):
            slow.append(slow_subscriber(conditions, BROKERS[name], version, seconds))
            storm.append(connect_storm(conditions, BROKERS[name], version, clients))
    return Scoreboard(versions, missing, tuple(slow), tuple(storm), seconds, clients)


def slow_subscriber(conditions: Conditions, broker: Broker, version: str, seconds: float) -> Score:
    words = [
        *("slow-subscriber", "--clients", str(SUBSCRIBERS), "--payload", str(PAYLOAD_BYTES)),
        *("--seconds", f"{seconds:g}", "--catch-up", f"{CATCH_UP_S:g}", "--version", version),
    ]
    try:
        alone, _ = storm_at(conditions, broker, [*words, "--slow", "0"])
        result, memory = storm_at(conditions, broker, [*words, "--slow", str(SLOW)])
    except (BadData, BrokerFailed, OSError) as error:
        return Score(broker.name, version, failure=str(error))
    return Score(broker.name, version, memory, result, alone)


def connect_storm(conditions: Conditions, broker: Broker, version: str, clients: int) -> Score:
    words = [
        *("connect", "--clients", str(clients), "--version", version),
        *("--connect-seconds", f"{STORM_S:g}", "--hold", "1"),
    ]
    try:
        result, memory = storm_at(conditions, broker, words)
    except (BadData, BrokerFailed, OSError) as error:
        return Score(broker.name, version, failure=str(error))
    return Score(broker.name, version, memory, result)


def storm_at(
    conditions: Conditions, broker: Broker, words: list[str]
) -> tuple[dict[str, Any], Memory]:
    """One `flowguard storm` at a fresh broker; `words`: which, with its options."""
    with broker.running(conditions.broker_core, words[0]) as running:
        return stormed(running, conditions, words)


def stormed(
    running: Running, conditions: Conditions, words: list[str]
) -> tuple[dict[str, Any], Memory]:
    """Its exit status says only that clients lost something."""
    command = [sys.executable, "-m", "flowguard", "storm", f"{HOST}:{running.port}", *words]
    before_kib = machine.resident_kib(running.pid)
    seen_kib, over = [before_kib], Event()

    def watch() -> None:
        while not over.wait(WATCH_S):
            try:
                seen_kib.append(machine.resident_kib(running.pid))
            except (OSError, ValueError):
                return  # It has ended, which its starter will report.

    watcher = Thread(target=watch)
    watcher.start()
    try:
        with machine.pinned(conditions.generator_core):
            done = subprocess.run(
                [*command, "--json", "-"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=SLOW_S + CATCH_UP_S + STORM_S + EXTRA_S,
            )
    except subprocess.TimeoutExpired as error:
        raise BadData(f"the storm did not end in {error.timeout:.0f} s") from error
    finally:
        over.set()
        watcher.join()
    if not done.stdout:
        raise BadData(f"no result: {done.stderr.strip()[-200:]}")
    after_kib = seen_kib[-1]
    memory = Memory(before_kib / 1024, max(seen_kib) / 1024, after_kib / 1024)
    return json.loads(done.stdout), memory
