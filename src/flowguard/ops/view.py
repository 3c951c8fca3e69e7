"""View: a node, as the HTTP port reads it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowguard.bounds import Bounds
from flowguard.flow.load.histogram import Histogram
from flowguard.node.node import Node
from flowguard.ops.catalogue import CATALOGUE
from flowguard.ops.common.explanation import last_end
from flowguard.ops.common.measurement import Look, Measurement, MemoryStatus
from flowguard.ops.condition import not_ready
from flowguard.ops.explain import InLog, explain
from flowguard.ops.explain_words import end_sentences, sentences
from flowguard.ops.queued import QueuedMessages
from flowguard.ops.talkers import Talkers, traffic_of
from flowguard.session.session import Session
from flowguard.telemetry.progress import RecordingProgress

NO_SESSION: Final = "no session of this client here"


@dataclass(frozen=True, slots=True)
class View:
    """A node, with its clock and the memory of the process (`common.view.Subject`)."""

    node: Node
    clock: Callable[[], float]
    memory: Callable[[], MemoryStatus | None]
    recording: RecordingProgress | None = None
    queued: QueuedMessages | None = None
    in_log: dict[str, InLog] = field(default_factory=dict)
    """Messages in the durable log of clients that are about to be explained."""

    @property
    def bounds(self) -> Bounds:
        return self.node.bounds

    @property
    def catalogue(self) -> Sequence[Measurement[Node]]:
        return CATALOGUE

    def look(self) -> Look[Node]:
        queued = None if self.queued is None else self.queued.count
        return Look(self.node, self.clock(), self.memory(), self.recording, queued)

    def latencies(self) -> Mapping[str, Histogram]:
        node = self.node
        return {
            "acknowledgement": node.router.acknowledgements.latency,
            "store": node.journal.written.sojourn,
            "connect": node.attempts.service,
        }

    def busiest(self) -> Talkers[Session]:
        return Talkers(self.node.registry.sessions, traffic_of)

    def not_ready(self) -> str:
        return not_ready(self.node, self.clock())

    def explained(self, client_id: str) -> Mapping[str, object] | None:
        explanation = explain(self.node, client_id, self.clock(), self.in_log.pop(client_id, None))
        if explanation is not None:
            return {**explanation, "sentences": sentences(explanation)}
        end = last_end(self.node.counters.lives, client_id)
        if end is None:
            return None
        return {"error": f"{NO_SESSION}. {' '.join(end_sentences(end, self.clock()))}"}
