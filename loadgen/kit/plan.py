"""The plan of a kit: its experiments, the number of clients, and facts about the broker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from loadgen.kit.report import Survival
from loadgen.storm.plan import Target
from loadgen.storm.tally import Result

TIMEOUT_S: Final = 10.0
"""Time that a client waits for its CONNACK, except in a retry storm."""


@final
class Experiment(NamedTuple):
    """The name of an experiment, as in options and JSON, and for people."""

    key: str
    title: str
    question: str
    figure: str
    """The name of its figure."""
    unit: str


CONNECT_STORM: Final = Experiment(
    "connect-storm",
    "Connect storm",
    "All clients connect at once. Do all get in, without resets and time-outs?",
    "99 % connected after",
    "s",
)
RETRY_STORM: Final = Experiment(
    "retry-storm",
    "Retry storm",
    "Twice as many clients give up after a second and retry at once. Does it ever calm down?",
    "99 % connected after",
    "s",
)
SLOW_SUBSCRIBER: Final = Experiment(
    "slow-subscriber",
    "Slow subscriber",
    "One of ten subscribers reads nothing. Do the others, and the publisher, notice?",
    "longest silence for the publisher",
    "s",
)
FLOOD_WITH_PINGS: Final = Experiment(
    "flood-with-pings",
    "Flood with pings",
    "Publishers flood, and ping every second. Does each ping get its answer in time?",
    "slowest answer to a ping",
    "s",
)
NOISY_NEIGHBOUR: Final = Experiment(
    "noisy-neighbour",
    "Noisy neighbour",
    "Quiet pairs send ten messages a second, beside a flood. How long do theirs take?",
    "p99 of quiet clients",
    "ms",
)
WIDE_FAN_OUT: Final = Experiment(
    "wide-fan-out",
    "Wide fan-out",
    "One publisher, all clients subscribe. Does each message reach all of them?",
    "p99 to a subscriber",
    "ms",
)
RESTART: Final = Experiment(
    "restart",
    "Restart",
    "The broker restarts under all clients. How soon are all connected again?",
    "99 % back after",
    "s",
)
EXPERIMENTS: Final = (
    *(CONNECT_STORM, RETRY_STORM, SLOW_SUBSCRIBER, FLOOD_WITH_PINGS),
    *(NOISY_NEIGHBOUR, WIDE_FAN_OUT, RESTART),
)


@final
@dataclass(frozen=True, slots=True)
class KitPlan:
    """The work of a kit; sizes of all experiments follow `clients`."""

    target: Target
    clock: Callable[[], float]
    clients: int = 1_000
    seconds: float = 6.0
    """Time for which messages are published in each experiment."""
    connect_s: float = 30.0
    """Maximum time for crowds to connect."""
    restart_command: str | None = None
    """A shell command that ends the broker and starts it again, and returns when it listens."""
    chosen: tuple[str, ...] = tuple(experiment.key for experiment in EXPERIMENTS)


@final
@dataclass(frozen=True, slots=True)
class KitOutcome:
    """The result of an experiment, before the kit checks that the broker still serves a client."""

    verdict: Survival
    figure: float | None
    sentence: str
    values: Result
