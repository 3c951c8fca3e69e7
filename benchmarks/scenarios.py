"""What is measured, with which arguments of the generator, and what flowguard has to reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
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
    # Both: the ratio to that broker, by the ratio to it that the other row has.
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
    numbers: Path | None = None
    """File with the numbers in client ids, or None: the indexes of the connections."""

    def arguments_for(self, broker: str) -> dict[str, float]:
        limits = self.limits.get(broker) or Limits()
        return {**self.arguments, **limits.arguments}

    def runs(self, broker: str, number: int) -> bool:
        """Whether this broker takes part in repetition `number` (from 0)."""
        limits = self.limits.get(broker, Limits())
        return limits is not None and (limits.repeat is None or number < limits.repeat)


def _mosquitto(ratio: float) -> Goal:
    return Goal(f"≥ {ratio:g}x mosquitto", ratio, "mosquitto")


ALL = Limits()
AMQTT_20 = Goal("≥ 20x amqtt", 20, "amqtt")
PIPELINED, ONE_AT_A_TIME = 10, 1  # w: publishes without PUBACK
TOPICS = 50
UNDELIVERED = 100  # e: messages of a pair that are on their way
SLOW_SETUP = {"setup-limit": 60}


def _messages(
    key: str,
    title: str,
    load: Mapping[str, float],
    *goals: Goal,
    quick: bool = False,
    amqtt: Limits | None = None,
) -> Scenario:
    """A row of messages; `amqtt`: what it does of it, None: nothing."""
    program = key.partition("-")[0] if key.startswith("fan") else "pairs"
    limits = {"amqtt": amqtt}
    return Scenario(key, title, Kind.MESSAGES, program, load, goals, quick, limits=limits)


def _pairs(
    qos: int,
    count: int,
    w: int | None,
    *goals: Goal,
    quick: bool = False,
    amqtt: Limits | None = None,
) -> Scenario:
    """So many pairs; `w`: publishes without PUBACK, None: QoS 0 has none."""
    load: dict[str, float] = {"count": count, "qos": qos, "e": UNDELIVERED}
    key, rest = f"qos{qos}-{count}", "pipelined"
    if w is not None:
        load["w"] = w
        key, rest = f"{key}-w{w}", f"{w} outstanding"
    title = f"QoS {qos}, {count} pairs, {rest}"
    return _messages(key, title, load, *goals, quick=quick, amqtt=amqtt)


def _durable(count: int, payload: int, *goals: Goal, quick: bool = False) -> tuple[Scenario, ...]:
    """Sessions that survive, on disk and in memory; the load is the same. `payload` in bytes."""
    size = f"{payload} B" if payload < 1024 else f"{payload // 1024} KiB"
    name = f"{count}-{payload}"
    in_memory_goal = Goal("≥ 0.6x in memory", 0.6, row=f"memory-{name}")
    on_disk = _messages(
        f"durable-{name}",
        f"durable sessions, QoS 1, {count} pairs, 10 outstanding, {size}",
        {**_pairs(1, count, PIPELINED).arguments, "payload": payload, "durable": 1},
        *goals,
        *([in_memory_goal] if count == 1000 else []),
        quick=quick,
    )
    in_memory = replace(
        on_disk,
        key=f"memory-{name}",
        title=f"the same, in memory ({count} pairs, {size})",
        goals=(),
        beside=on_disk.key,
        limits={"amqtt": None, "mosquitto": None, "sink": None},
    )
    return on_disk, in_memory


def _topics(row: Scenario, *goals: Goal) -> Scenario:
    """The same load, each message of a publisher for another of its topics."""
    title = f"the same, {TOPICS} topics in turn"
    load = {**row.arguments, "topics": TOPICS}
    limits = {"amqtt": None, "sink": None}
    return replace(
        row,
        key=f"{row.key}-topics",
        title=title,
        arguments=load,
        goals=goals,
        quick=False,
        limits=limits,
    )


def _open_loop(rate: int, *goals: Goal, durable: bool = False) -> Scenario:
    """Messages come when they are due, not when the broker has answered: what most users have."""
    load = {"count": 100, "qos": 1, "rate": rate, **({"durable": 1} if durable else {})}
    name, rest = ("durable-", ", durable sessions") if durable else ("", "")
    title = f"{rate:,}/s at random times, QoS 1, 100 pairs{rest}"
    return _messages(f"{name}open-{rate}", title, load, *goals)


LAYERS = {"tls": "TLS", "ws": "WebSocket"}


def _layered(row: Scenario, layer: str, *goals: Goal) -> Scenario:
    """The same load by TLS, or by WebSocket; the sink speaks neither."""
    return replace(
        row,
        key=f"{row.key}-{layer}",
        title=f"the same by {LAYERS[layer]}",
        arguments={**row.arguments, layer: 1},
        goals=goals,
        quick=False,
        beside=row.key,
        limits={"amqtt": None, "sink": None},
    )


def _no_worse(row: Scenario) -> Goal:
    return Goal("≥ 1x the ratio above", 1, "mosquitto", row.key)


ONE_STREAM = _pairs(0, 100, None, _mosquitto(11), quick=True, amqtt=Limits({"warmup": 2}))
TEN_OUTSTANDING = _pairs(1, 100, PIPELINED, _mosquitto(8), AMQTT_20, quick=True, amqtt=ALL)
BESIDE_DURABLE = replace(
    TEN_OUTSTANDING,
    key="qos1-100-w10-beside",
    title="the same beside one durable pair with 20/s",
    arguments={**TEN_OUTSTANDING.arguments, "beside": 20},
    goals=(Goal("≥ 0.95x alone", 0.95, row=TEN_OUTSTANDING.key),),
    quick=False,
    beside=TEN_OUTSTANDING.key,
    limits={"amqtt": None},
)
ONE_OUTSTANDING = _pairs(1, 100, ONE_AT_A_TIME, _mosquitto(1.6), AMQTT_20, quick=True, amqtt=ALL)
IDLE = Scenario(
    "idle",
    "idle connection, one subscription",
    Kind.IDLE,
    "idle",
    {"count": 10000, "qos": 1},
    (Goal("≤ 1.5 KiB", 1.5, at_most=True),),
    quick=True,
    limits={"amqtt": Limits({"count": 2000, **SLOW_SETUP}, repeat=1)},
)
SCENARIOS = (
    ONE_STREAM,
    _topics(ONE_STREAM, _mosquitto(8)),
    _pairs(0, 1000, None, _mosquitto(4)),
    TEN_OUTSTANDING,
    *(_layered(TEN_OUTSTANDING, layer, _no_worse(TEN_OUTSTANDING)) for layer in LAYERS),
    BESIDE_DURABLE,
    _topics(TEN_OUTSTANDING, _mosquitto(6.5)),
    ONE_OUTSTANDING,
    *(_layered(ONE_OUTSTANDING, layer, _no_worse(ONE_OUTSTANDING)) for layer in LAYERS),
    _pairs(1, 1000, PIPELINED, _mosquitto(8)),
    _pairs(1, 1000, ONE_AT_A_TIME, _mosquitto(1)),
    _open_loop(1000),
    _open_loop(5000, Goal("≥ 0.91x mosquitto", 0.91, "mosquitto")),
    _open_loop(20_000),
    *(_open_loop(rate, durable=True) for rate in (1000, 5000, 20_000)),
    *_durable(100, 16, _mosquitto(2.2)),
    *_durable(1000, 16, _mosquitto(1), quick=True),
    *_durable(100, 1024, _mosquitto(2)),
    *_durable(1000, 1024, _mosquitto(1)),
    _messages(
        "fanout-qos0",
        "fan-out 1 → 1000, QoS 0",
        {"count": 1000, "qos": 0, "e": 10},
        _mosquitto(14),
        quick=True,
        amqtt=Limits({"warmup": 2}, repeat=1),
    ),
    _messages(
        "fanout-qos1",
        "fan-out 1 → 1000, QoS 1",
        {"count": 1000, "qos": 1, "w": PIPELINED, "e": 10},
        _mosquitto(9),
        quick=True,
        amqtt=Limits({"warmup": 4}, repeat=1),
    ),
    _messages("fanin-qos0", "fan-in 1000 → 1, QoS 0", {"count": 1000, "qos": 0, "e": 1}),
    _messages(
        "fanin-qos1",
        "fan-in 1000 → 1, QoS 1",
        {"count": 1000, "qos": 1, "w": ONE_AT_A_TIME, "e": 1},
    ),
    Scenario(
        "storm",
        "5000 connects at once",
        Kind.STORM,
        "storm",
        {"count": 5000},
        (
            Goal("none fails", 0, key="failures", at_most=True),
            Goal("p99 ≤ 176 ms", 176, key="connack_p99_ms", at_most=True),
        ),
        quick=True,
        limits={"amqtt": Limits(SLOW_SETUP, repeat=1)},
    ),
    IDLE,
    replace(
        _layered(IDLE, "tls", Goal("≤ 14 KiB", 14, at_most=True)),
        arguments={**IDLE.arguments, **SLOW_SETUP, "tls": 1},
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
