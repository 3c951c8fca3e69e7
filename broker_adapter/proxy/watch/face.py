"""Face: the proxy as logs and measurements read it (`flowguard.broker.protected.Protected`)."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.pair import ProxyPair
from flowguard.bounds import CONNECTION_BYTES, PROCESS_BYTES, Bounds
from flowguard.config import Settings
from flowguard.flow import Guard, Reason
from flowguard.node.connect.accept_state import Door
from flowguard.session.counters import Counters


@dataclass(slots=True)
class Face:
    core: ProxyCore
    bounds: Bounds
    """The settings in force, with those of this proxy in section `flow`."""
    clock: Callable[[], float]
    started_s: float
    links: Sized
    """Sockets of clients and to upstreams."""

    @property
    def guard(self) -> Guard[ProxyPair]:
        return self.core.guard

    @property
    def door(self) -> Door:
        return self.core.door

    @property
    def counters(self) -> Counters:
        return self.core.counters

    @property
    def settings(self) -> Settings:
        return self.bounds.settings

    @property
    def connections_count(self) -> int:
        return len(self.links)

    def refused_connects(self) -> Mapping[Reason, int]:
        return self.core.guard.gate.refused

    @property
    def held_bytes(self) -> int:
        """Memory that the proxy accounts for."""
        core = self.core
        pairs_bytes = CONNECTION_BYTES * len(core.pairs) + core.held_bytes
        return PROCESS_BYTES + pairs_bytes + core.door.handshake_bytes
