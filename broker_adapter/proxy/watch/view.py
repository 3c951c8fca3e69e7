"""ProxyView: the proxy as the HTTP port reads it (`flowguard.ops.common.view.Subject`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker_adapter.proxy.pair import ProxyPair
from broker_adapter.proxy.watch.catalogue import CATALOGUE
from broker_adapter.proxy.watch.clients import traffic_of
from broker_adapter.proxy.watch.explain import explained
from broker_adapter.proxy.watch.face import Face
from flowguard.bounds import Bounds
from flowguard.flow.load.histogram import Histogram
from flowguard.node.connect.accept_state import Rest
from flowguard.ops.common.measurement import Look, Measurement, MemoryStatus
from flowguard.ops.condition import NO_DESCRIPTORS, outage
from flowguard.ops.talkers import Talkers


@dataclass(frozen=True, slots=True)
class ProxyView:
    face: Face
    resident_bytes: Callable[[], int]

    @property
    def bounds(self) -> Bounds:
        return self.face.bounds

    @property
    def catalogue(self) -> Sequence[Measurement[Face]]:
        return CATALOGUE

    def look(self) -> Look[Face]:
        face = self.face
        memory = MemoryStatus(
            held_bytes=face.held_bytes,
            resident_bytes=self.resident_bytes(),
            limit_bytes=face.bounds.memory_bytes,
        )
        return Look(face, face.clock(), memory)

    def latencies(self) -> Mapping[str, Histogram]:
        core = self.face.core
        return {"acknowledgement": core.acknowledged, "connect": core.lives.connect_service}

    def busiest(self) -> Talkers[ProxyPair]:
        return Talkers(self.face.core.lives.clients, traffic_of)

    def not_ready(self) -> str:
        core = self.face.core
        if core.door.leaving:
            return "draining"
        away_s = core.away_s(self.face.clock())
        if away_s:
            return outage("upstream", away_s)
        return NO_DESCRIPTORS if core.door.resting is Rest.DESCRIPTORS else ""

    def explained(self, client_id: str) -> Mapping[str, object] | None:
        return explained(self.face, client_id)
