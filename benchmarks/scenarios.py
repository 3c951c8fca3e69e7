"""What is measured, with which arguments of the generator, and what flowguard has to reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Kind(Enum):
    """How a scenario's figure is made."""

    MESSAGES = "messages in and out per second of broker CPU time"
    STORM = "connects per second"
    IDLE = "KiB resident per idle connection"


@dataclass(frozen=True)
class Goal:
    """A bound on flowguard: a ratio to a peer in the same run, or an absolute figure."""

    text: str
    bound: float
    peer: str = ""  # of a ratio: the broker
    row: str = ""  # of a ratio: the same broker in another row; neither: absolute
    key: str = "value"  # the figure of the sample that is compared
    at_most: bool = False


@dataclass(frozen=True)
class Limits:
    """What a slow peer does instead of the full scenario; None: it leaves the scenario out."""

    arguments: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    repeat: int | None = None


@dataclass(frozen=True)
class Scenario:
    """One row of the table. `arguments` are the generator's options (loadgen.c)."""

    key: str
    title: str
    kind: Kind
    program: str  # the generator's scenario
    arguments: Mapping[str, float]
    goals: tuple[Goal, ...] = ()
    quick: bool = False  # part of --quick
    beside: str = ""  # the row it is interleaved with
    limits: Mapping[str, Limits | None] = field(default_factory=lambda: MappingProxyType({}))

    def arguments_for(self, broker: str) -> dict[str, float]:
        limits = self.limits.get(broker) or Limits()
        return {**self.arguments, **limits.arguments}

    def runs(self, broker: str, number: int) -> bool:
        """Whether this broker takes part in repetition `number` (from 0)."""
        limits = self.limits.get(broker, Limits())
        return limits is not None and (limits.repeat is None or number < limits.repeat)


def _mosquitto(ratio: float) -> Goal:
    return Goal(f"≥ {ratio:g}x mosquitto", ratio, "mosquitto")


def _durable(count: int, payload_bytes: int, *, judged: bool, quick: bool) -> tuple[Scenario, ...]:
    """Sessions that survive, on disk and in memory; the load is the same."""
    size = f"{payload_bytes} B" if payload_bytes < 1024 else f"{payload_bytes // 1024} KiB"
    name = f"{count}-{payload_bytes}"
    goals = (_mosquitto(1), Goal("≥ 0.6x in memory", 0.6, row=f"memory-{name}"))
    arguments = {
        "count": count,
        "qos": 1,
        "w": PIPELINED,
        "e": UNDELIVERED,
        "payload": payload_bytes,
        "durable": 1,
    }
    return (
        Scenario(
            f"durable-{name}",
            f"durable sessions, QoS 1, {count} pairs, 10 outstanding, {size}",
            Kind.MESSAGES,
            "pairs",
            arguments,
            goals if judged else (),
            quick=quick,
            limits={"amqtt": None},
        ),
        Scenario(
            f"memory-{name}",
            f"the same, in memory ({count} pairs, {size})",
            Kind.MESSAGES,
            "pairs",
            arguments,
            quick=quick,
            beside=f"durable-{name}",
            limits={"amqtt": None, "mosquitto": None, "sink": None},
        ),
    )


AMQTT_20 = Goal("≥ 20x amqtt", 20, "amqtt")
WITHOUT_AMQTT = {"amqtt": None}
PIPELINED, ONE_AT_A_TIME = 10, 1  # w: publishes without PUBACK
UNDELIVERED = 100  # e: messages of a pair that are on their way

SCENARIOS = (
    Scenario(
        "qos0-100",
        "QoS 0, 100 pairs, pipelined",
        Kind.MESSAGES,
        "pairs",
        {"count": 100, "qos": 0, "e": UNDELIVERED},
        (_mosquitto(4),),
        quick=True,
        limits={"amqtt": Limits({"warmup": 2})},
    ),
    Scenario(
        "qos0-1000",
        "QoS 0, 1000 pairs, pipelined",
        Kind.MESSAGES,
        "pairs",
        {"count": 1000, "qos": 0, "e": UNDELIVERED},
        (_mosquitto(4),),
        limits=WITHOUT_AMQTT,
    ),
    Scenario(
        "qos1-100-w10",
        "QoS 1, 100 pairs, 10 outstanding",
        Kind.MESSAGES,
        "pairs",
        {"count": 100, "qos": 1, "w": PIPELINED, "e": UNDELIVERED},
        (_mosquitto(2), AMQTT_20),
        quick=True,
    ),
    Scenario(
        "qos1-100-w1",
        "QoS 1, 100 pairs, 1 outstanding",
        Kind.MESSAGES,
        "pairs",
        {"count": 100, "qos": 1, "w": ONE_AT_A_TIME, "e": UNDELIVERED},
        (_mosquitto(1), AMQTT_20),
        quick=True,
    ),
    Scenario(
        "qos1-1000-w10",
        "QoS 1, 1000 pairs, 10 outstanding",
        Kind.MESSAGES,
        "pairs",
        {"count": 1000, "qos": 1, "w": PIPELINED, "e": UNDELIVERED},
        (_mosquitto(2),),
        limits=WITHOUT_AMQTT,
    ),
    Scenario(
        "qos1-1000-w1",
        "QoS 1, 1000 pairs, 1 outstanding",
        Kind.MESSAGES,
        "pairs",
        {"count": 1000, "qos": 1, "w": ONE_AT_A_TIME, "e": UNDELIVERED},
        (_mosquitto(1),),
        limits=WITHOUT_AMQTT,
    ),
    *_durable(100, 16, judged=False, quick=False),
    *_durable(1000, 16, judged=True, quick=True),
    *_durable(100, 1024, judged=False, quick=False),
    *_durable(1000, 1024, judged=True, quick=False),
    Scenario(
        "fanout-qos0",
        "fan-out 1 → 1000, QoS 0",
        Kind.MESSAGES,
        "fanout",
        {"count": 1000, "qos": 0, "e": 10},
        (_mosquitto(3),),
        quick=True,
        limits={"amqtt": Limits({"warmup": 2}, repeat=1)},
    ),
    Scenario(
        "fanout-qos1",
        "fan-out 1 → 1000, QoS 1",
        Kind.MESSAGES,
        "fanout",
        {"count": 1000, "qos": 1, "w": PIPELINED, "e": 10},
        (_mosquitto(2),),
        quick=True,
        limits={"amqtt": Limits({"warmup": 4}, repeat=1)},
    ),
    Scenario(
        "fanin-qos0",
        "fan-in 1000 → 1, QoS 0",
        Kind.MESSAGES,
        "fanin",
        {"count": 1000, "qos": 0, "e": 1},
        limits=WITHOUT_AMQTT,
    ),
    Scenario(
        "fanin-qos1",
        "fan-in 1000 → 1, QoS 1",
        Kind.MESSAGES,
        "fanin",
        {"count": 1000, "qos": 1, "w": ONE_AT_A_TIME, "e": 1},
        limits=WITHOUT_AMQTT,
    ),
    Scenario(
        "storm",
        "5000 connects at once",
        Kind.STORM,
        "storm",
        {"count": 5000},
        (
            Goal("none fails", 0, key="failures", at_most=True),
            Goal("p99 ≤ 100 ms", 100, key="connack_p99_ms", at_most=True),
        ),
        quick=True,
        limits={"amqtt": Limits({"setup-limit": 60}, repeat=1)},
    ),
    Scenario(
        "idle",
        "idle connection, one subscription",
        Kind.IDLE,
        "idle",
        {"count": 10000, "qos": 1},
        (Goal("≤ 2 KiB", 2, at_most=True),),
        quick=True,
        limits={"amqtt": Limits({"count": 2000, "setup-limit": 60}, repeat=1)},
    ),
)


def find(keys: list[str]) -> tuple[Scenario, ...]:
    """The scenarios of those keys; a key that is none stands for all that start with it.

    Raises `ValueError` for a key that fits nothing.
    """
    known = [s.key for s in SCENARIOS]
    chosen: set[str] = set()
    for key in keys:
        fitting = [key] if key in known else [k for k in known if k.startswith(key)]
        if not fitting:
            raise ValueError(f"no scenario {key}; there are {', '.join(known)}")
        chosen.update(fitting)
    return tuple(s for s in SCENARIOS if s.key in chosen)
