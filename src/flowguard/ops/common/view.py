"""Subject: a broker or a proxy, as the HTTP port reads it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flowguard.bounds import Bounds
from flowguard.flow.load.histogram import Histogram
from flowguard.ops.common.measurement import Look, Measurement


class Busiest(Protocol):
    """Clients with the most traffic and the longest queues, found look by look."""

    def look(self, now_s: float) -> None: ...

    def shown(self) -> Mapping[str, object]:
        """Return the lists of clients, by name, for a sample."""


class Subject(Protocol):
    @property
    def bounds(self) -> Bounds:
        """The settings in force."""

    @property
    def catalogue(self) -> Sequence[Measurement[Any]]:
        """Everything that is measured."""

    def look(self) -> Look[Any]: ...

    def latencies(self) -> Mapping[str, Histogram]:
        """Return the histograms whose recent percentiles the page shows, by name."""

    def busiest(self) -> Busiest: ...

    def not_ready(self) -> str:
        """Return why no new clients are taken now, or "" if they are; costs nothing."""

    def explained(self, client_id: str) -> Mapping[str, object] | None:
        """Return the state of a client with its sentences, or None if there is none. An answer
        with `error` is that of a client without a session."""
