"""Samples: the state of the node once a second, shared by all viewers.

There is one sampler. It always keeps its history (a few numbers a second for five minutes, and each
tenth of them for an hour), so that later viewers also see a past problem. Full samples are made and
encoded only while there are viewers, once for all. Each viewer gets the newest sample that it has
not had. A slow viewer misses samples, and nothing is queued for it.
"""

import json
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

import trio

from flowguard.ops.common.view import Subject
from flowguard.ops.condition import condition_of
from flowguard.ops.latency import Latency, RecentLatency
from flowguard.ops.status import Status, status_at

SAMPLE_S: Final = 1.0
HISTORY_MAX: Final = 300
OLDER_EACH: Final = 10
"""One of this number of samples is kept longer."""
OLDER_MAX: Final = 330
"""Maximum number of older samples; with the newer ones they are an hour."""


class SamplePoint(NamedTuple):
    """The numbers of one instant that the page draws as lines; rates are per second."""

    at_s: float
    pressure: float
    window: float
    clients: int
    unfinished: int
    connects_waiting: int
    received_per_s: float
    sent_per_s: float
    refused_per_s: float
    dropped_per_s: float
    acknowledged_p99_s: float | None


@final
class Sampler:
    """Looks at a node periodically; `run` it, and `event_after` returns its samples."""

    def __init__(self, view: Subject, on_error: Callable[[BaseException], None]) -> None:
        self._view = view
        self._on_error = on_error
        self._latencies = {name: RecentLatency(each) for name, each in view.latencies().items()}
        self._busiest = view.busiest()
        self._points: deque[SamplePoint] = deque(maxlen=HISTORY_MAX)
        self._older: deque[SamplePoint] = deque(maxlen=OLDER_MAX)
        self._totals: tuple[float, ...] | None = None
        self._event = b""
        self._arrived = trio.Event()
        self.number = 0
        """Number of samples taken."""
        self.encoded = 0
        """Number of samples encoded, once for all viewers."""
        self.viewers = 0

    async def run(self) -> None:
        """Take a sample every SAMPLE_S; an error costs one sample."""
        while True:
            try:
                self.take()
            except Exception as error:
                self._on_error(error)
            await trio.sleep(SAMPLE_S)

    def take(self) -> None:
        """Look at the node now, and wake waiting viewers."""
        status = status_at(self._view.catalogue, self._view.look())
        latencies = {name: latency.look() for name, latency in self._latencies.items()}
        if len(self._points) == HISTORY_MAX and self.number % OLDER_EACH == 0:
            self._older.append(self._points[0])
        self._points.append(self._point(status, latencies["acknowledgement"]))
        self.number += 1
        if self.viewers:
            self._busiest.look(status["now_s"])
            self._event = self._encoded(status, latencies)
            self.encoded += 1
            arrived, self._arrived = self._arrived, trio.Event()
            arrived.set()

    async def event_after(self, number: int) -> tuple[int, bytes]:
        """Wait for a sample after `number`; return its number and event [HTML, 9.2]."""
        while self.encoded <= number:
            await self._arrived.wait()
        return self.encoded, self._event

    def join(self) -> None:
        """Add a viewer, which must call `leave` in the end."""
        if not self.viewers:
            self._busiest = self._view.busiest()
        self.viewers += 1

    def leave(self) -> None:
        self.viewers -= 1

    def history_event(self) -> bytes:
        """Return the history as an event, oldest first."""
        points = [*self._older, *self._points]
        return _event("history", {"fields": SamplePoint._fields, "points": points})

    def _encoded(self, status: Status, latencies: dict[str, Latency]) -> bytes:
        condition, sentence = condition_of(status)
        sample = {
            "condition": condition,
            "sentence": sentence,
            "point": self._points[-1],
            "status": status,
            "latencies": latencies,
            **self._busiest.shown(),
        }
        return _event("sample", sample)

    def _point(self, status: Status, acknowledged: Latency) -> SamplePoint:
        traffic = status["traffic"]
        totals = (
            status["now_s"],
            traffic["publish_received"],
            traffic["publish_sent"],
            sum(status["gate"]["refused"].values()),
            sum(status["dropped"].values()),
        )
        before, self._totals = self._totals or totals, totals
        passed_s = totals[0] - before[0]
        received, sent, refused, dropped = (
            (now - then) / passed_s if passed_s > 0 else 0.0
            for now, then in zip(totals[1:], before[1:], strict=True)
        )
        return SamplePoint(
            totals[0],
            status["pressure"]["value"],
            status["window"]["granted"],
            status["clients"]["connected"],
            status["unfinished"]["packets"]["used"],
            status["gate"]["buffered"]["used"],
            received,
            sent,
            refused,
            dropped,
            acknowledged["p99_s"],
        )


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()
