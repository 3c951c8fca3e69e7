"""A measurement: one entry of a catalogue, for `/status` and `/metrics`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from typing_extensions import TypedDict

from flowguard.telemetry.progress import RecordingProgress

N = TypeVar("N", contravariant=True)
S = TypeVar("S", covariant=True)
T = TypeVar("T")


class MemoryStatus(TypedDict):
    """Memory of the process, bytes."""

    held_bytes: int
    resident_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Look(Generic[S]):
    """A node at one instant, with values of its process."""

    node: S
    now_s: float
    memory: MemoryStatus | None = None
    recording: RecordingProgress | None = None
    queued: int | None = None
    """Number of messages in queues at the latest scrape, or None if they are not counted."""


class Kind(Enum):
    """The type of a metric in Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Measurement(Generic[N]):
    """One measurement: a value, or a mapping from labels to values."""

    path: str
    """Keys in the status, joined by dots, or "" if the status has it in another form."""
    get: Callable[[Look[N]], Any]
    """Reads the value; without a value there is no metric."""
    kind: Kind = Kind.GAUGE
    metric: str = ""
    """Name without `flowguard_` and `_total`, or "" if only the status has it."""
    help: str = ""
    labels: tuple[str, ...] = ()
    known: Collection[str] = ()
    """Labels that the metric has from the start."""


def shown(path: str, get: Callable[[Look[T]], Any]) -> Measurement[T]:
    return Measurement(path, get)


def gauge(
    path: str, metric: str, get: Callable[[Look[T]], Any], help: str, *labels: str
) -> Measurement[T]:
    return Measurement(path, get, Kind.GAUGE, metric, help, labels)


def counter(
    path: str,
    metric: str,
    get: Callable[[Look[T]], Any],
    help: str,
    label: str = "",
    known: Collection[str] = (),
) -> Measurement[T]:
    labels = (label,) if label else ()
    return Measurement(path, get, Kind.COUNTER, metric, help, labels, known)


def histogram(metric: str, get: Callable[[Look[T]], Any], help: str) -> Measurement[T]:
    return Measurement("", get, Kind.HISTOGRAM, metric, help)


def counts(numbers: Mapping[Any, int]) -> dict[str, int]:
    """Return the numbers by the text of their reason."""
    return {str(reason): number for reason, number in numbers.items()}
