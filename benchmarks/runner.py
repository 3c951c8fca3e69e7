"""One sample: a fresh broker on its core, the generator on the other, no trust in what comes back.

A sample that cannot be right (a closed connection, no CPU time, a window of the wrong length, more
delivered than sent) becomes a failure with its reason; it never becomes a number.
"""

import json
import math
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import machine
from .brokers import Broker, BrokerFailed, Running
from .build import options
from .machine import Cores
from .scenarios import Kind, Scenario

SETTLE_S = 1.0  # before resident memory is read
WINDOW_TOLERANCE = 0.05
MIN_TICKED_S = 0.4  # below, the 10 ms ticks of the whole machine say nothing
EXTRA_S = 60.0  # beyond its own limits, before the generator is ended from outside
SETUP_LIMIT_S, WARMUP_S, DRAIN_LIMIT_S = 300.0, 1.0, 15.0


Load = dict[str, float]
"""Arguments of the generator."""
Found = tuple[dict[str, float], list[str]]
"""Figures and notes."""


class BadData(Exception):
    """The generator failed, or reported what cannot be right."""


@dataclass(frozen=True)
class Sample:
    """What one run of one broker gave: figures, or the reason why there are none."""

    broker: str
    scenario: str
    figures: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Bench:
    """What all samples share."""

    generator: Path
    cores: Cores | None
    seconds: float  # length of the measured window

    def sample(self, broker: Broker, scenario: Scenario) -> Sample:
        arguments = {
            "warmup": WARMUP_S,
            "seconds": self.seconds,
            "setup-limit": SETUP_LIMIT_S,
            "drain-limit": DRAIN_LIMIT_S,
            **scenario.arguments_for(broker.name),
        }
        core = self.cores.broker if self.cores else None
        measure = {Kind.MESSAGES: self._messages, Kind.STORM: self._storm, Kind.IDLE: self._idle}
        try:
            with broker.running(core, scenario.key) as running:
                figures, notes = measure[scenario.kind](running, scenario, arguments)
        except (BadData, BrokerFailed, OSError, subprocess.TimeoutExpired) as error:
            return Sample(broker.name, scenario.key, failure=str(error))
        return Sample(broker.name, scenario.key, figures, tuple(notes))

    def _messages(self, running: Running, scenario: Scenario, load: Load) -> Found:
        result = self._generate(running, scenario, load)
        refuse_errors(result)
        window_s, figures = usage(result)
        if abs(window_s / self.seconds - 1) > WINDOW_TOLERANCE:
            raise BadData(f"a window of {window_s:.2f} s instead of {self.seconds:g} s")
        accepted, delivered = number(result, "accepted"), number(result, "delivered")
        lost, disordered = number(result, "lost"), number(result, "disordered")
        copies = load["count"] if scenario.program == "fanout" else 1
        if number(result, "delivered_total") + lost != number(result, "sent_total") * copies:
            raise BadData("messages sent, delivered and lost do not add up")
        if not accepted or not delivered:
            raise BadData(
                f"accepted {accepted:.0f} and delivered {delivered:.0f} messages in the window"
            )
        figures |= {
            "value": (accepted + delivered) / (figures["broker_cores"] * window_s),
            "rate_per_s": (accepted + delivered) / window_s,
            "lost": lost,
            "delivered_total": number(result, "delivered_total"),
            "peak_mib": machine.peak_resident_kib(running.pid) / 1024,
            "p50_ms": number(result["latency_ms"], "p50"),
            "p99_ms": number(result["latency_ms"], "p99"),
            "p999_ms": number(result["latency_ms"], "p999"),
            "cpu_us": 1e6 * figures["broker_cores"] * window_s / delivered,
        }
        notes = [f"{lost:.0f} lost"] if lost else []
        notes += [f"{disordered:.0f} out of order"] if disordered else []
        return figures, notes

    def _storm(self, running: Running, scenario: Scenario, load: Load) -> Found:
        result = self._generate(running, scenario, load)
        window_s, figures = usage(result)
        kinds = ("refused", "failed", "timed_out", "closed_later")
        failures = {kind: number(result, kind) for kind in kinds if number(result, kind)}
        connected, storm_s = number(result, "connected"), number(result, "storm_s")
        if not connected or storm_s <= 0:
            raise BadData(f"nobody was connected: {result['first_error'] or 'no answer in time'}")
        figures |= {
            "value": connected / storm_s,
            "rate_per_s": connected / storm_s,
            "cpu_us": 1e6 * figures["broker_cores"] * window_s / connected,
            "failures": sum(failures.values()),
            "connack_p99_ms": number(result["connack_ms"], "p99"),
            "p50_ms": number(result["connack_ms"], "p50"),
            "p99_ms": number(result["connack_ms"], "p99"),
            "issue_s": number(result, "issue_s"),
            "peak_mib": machine.peak_resident_kib(running.pid) / 1024,
        }
        asked = f"of {load['count']:.0f}"
        return figures, [
            f"{n:.0f} {asked} {kind.replace('_', ' ')}" for kind, n in failures.items()
        ]

    def _idle(self, running: Running, scenario: Scenario, load: Load) -> Found:
        count = load["count"]
        time.sleep(SETTLE_S)
        before_kib = machine.resident_kib(running.pid)
        command = self._command(running, scenario, load)
        with machine.pinned(self.cores.generator if self.cores else None):
            generator = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        with generator:
            assert generator.stdout is not None
            ready = parse_line(generator.stdout.readline())  # comes in setup-limit seconds at most
            time.sleep(SETTLE_S)
            after_kib = machine.resident_kib(running.pid)
            output, errors = generator.communicate(timeout=EXTRA_S)
        result = last_result(output, errors)
        if number(ready, "ready") != count:
            reason = result["first_error"] or "no answer in time"
            raise BadData(
                f"{number(ready, 'ready'):.0f} of {count:.0f} connections ready: {reason}"
            )
        refuse_errors(result)
        figures = {"value": (after_kib - before_kib) / count, "peak_mib": after_kib / 1024}
        return figures, [f"{count:.0f} connections"]

    def _generate(self, running: Running, scenario: Scenario, load: Load) -> dict[str, Any]:
        limits = ("setup-limit", "warmup", "seconds", "drain-limit")
        with machine.pinned(self.cores.generator if self.cores else None):
            try:
                done = subprocess.run(
                    self._command(running, scenario, load),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=sum(load[limit] for limit in limits) + EXTRA_S,
                )
            except subprocess.TimeoutExpired as error:
                raise BadData(f"the generator did not end in {error.timeout:.0f} s") from error
        return last_result(done.stdout, done.stderr)

    def _command(self, running: Running, scenario: Scenario, load: Load) -> list[str]:
        values = {"port": running.port, "broker-pid": running.pid, **running.options, **load}
        numbers = ["--numbers", str(scenario.numbers)] if scenario.numbers else []
        return [str(self.generator), scenario.program, *options(values), *numbers]


def usage(result: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Length of the window in s, and the cores that broker, generator and others used in it."""
    window_s, broker_s = number(result, "window_s"), number(result, "broker_cpu_s")
    if window_s <= 0 or broker_s <= 0:
        raise BadData(f"{broker_s:.3f} s of broker CPU time in a window of {window_s:.3f} s")
    figures = {
        "broker_cores": broker_s / window_s,
        "generator_cores": number(result, "generator_cpu_s") / window_s,
    }
    if window_s > MIN_TICKED_S:
        figures["other_cores"] = number(result, "other_cpu_s") / window_s
    return window_s, figures


def refuse_errors(result: dict[str, Any]) -> None:
    if number(result, "errors"):
        raise BadData(f"{result['errors']} connections failed, the first: {result['first_error']}")


def number(result: Any, key: str) -> float:
    """A finite number out of the generator's JSON, or `BadData`."""
    value = result.get(key) if isinstance(result, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadData(f"the generator gave no number for {key}: {value!r}")
    return float(value)


def last_result(output: str, errors: str) -> dict[str, Any]:
    """The result line that ends the generator's output."""
    lines = output.splitlines()
    if not lines:
        raise BadData(f"the generator said nothing: {errors.strip() or 'no error either'}")
    result = parse_line(lines[-1])
    if result.get("event") != "result":
        raise BadData(f"the generator gave no result: {errors.strip() or lines[-1]}")
    return result


def parse_line(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError as error:
        raise BadData(f"not JSON from the generator: {line!r}") from error
    if not isinstance(parsed, dict):
        raise BadData(f"not an object from the generator: {line!r}")
    return parsed
