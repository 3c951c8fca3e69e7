"""Protected: what a broker's node and the proxy have in common, for logs and measurements."""

from collections.abc import Mapping
from typing import Any, Protocol

from flowguard.bounds import Bounds
from flowguard.config import Settings
from flowguard.flow import Guard, Reason
from flowguard.node.connect.accept_state import Door
from flowguard.session.counters import Counters


class Protected(Protocol):
    """Clients behind a guard."""

    @property
    def guard(self) -> Guard[Any]: ...

    @property
    def door(self) -> Door: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def bounds(self) -> Bounds: ...

    @property
    def started_s(self) -> float: ...

    @property
    def connections_count(self) -> int:
        """Number of sockets of clients, with or without a CONNECT."""

    def refused_connects(self) -> Mapping[Reason, int]:
        """Return numbers of CONNECTs without capacity, by reason."""
