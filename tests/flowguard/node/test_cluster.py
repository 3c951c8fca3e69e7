"""Two nodes that exchange pressure records through a wire, which here is a list."""

from flowguard.cluster import Cluster, PressureRecord
from flowguard.config import FlowSettings
from flowguard.types import MQTT_311, Publish
from tests.support.stage import Stage

FLOW = {"window_max": 100}


class Pair:
    """Two nodes. A record of one reaches the other with the next tick, unless the wire is cut."""

    def __init__(self, *, replicated: bool) -> None:
        """`replicated`: each stores what the other does."""
        self.cut = False
        self.wires: dict[str, list[PressureRecord]] = {"a": [], "b": []}
        self.clusters = {name: Cluster(name, 1, FlowSettings(**FLOW)) for name in "ab"}
        for cluster in self.clusters.values() if replicated else ():
            cluster.path = frozenset("ab")
        self.stages = {
            name: Stage(
                {"flow": FLOW},
                cluster=self.clusters[name],
                tell=lambda record, name=name: self.wires[name].append(record),
            )
            for name in "ab"
        }

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            for stage in self.stages.values():
                stage.advance(0.1)
            for name, other in (("a", "b"), ("b", "a")):
                records, self.wires[name] = self.wires[name], []
                for record in records if not self.cut else ():
                    self.clusters[other].merge(record, self.stages[other].now_s)

    def window(self, name: str) -> int:
        return self.stages[name].node.guard.window.limit


def hang(stage: Stage) -> None:
    """A store that does not answer, and a client that waits for it with two packets."""
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p", version=MQTT_311)
    stage.hold_commits = True
    publisher.send(*(Publish("t", b"", 1, packet_id=number) for number in (1, 2)))


def test_a_replica_in_distress_slows_the_clients_of_its_node_and_relief_frees_them() -> None:
    pair = Pair(replicated=True)
    pair.advance(1)
    assert (pair.window("a"), pair.window("b")) == (100, 100)
    hang(pair.stages["a"])
    pair.advance(5)
    assert (pair.window("a"), pair.window("b")) == (1, 1)
    assert "cluster leaves" in pair.stages["b"].node.guard.grant.why
    pair.stages["a"].release_commits()
    pair.advance(26)
    assert (pair.window("a"), pair.window("b")) == (100, 100)


def test_node_in_distress_changes_no_window_of_clients_that_send_it_nothing() -> None:
    pair = Pair(replicated=False)
    pair.advance(1)
    hang(pair.stages["a"])
    pair.advance(5)
    assert (pair.window("a"), pair.window("b")) == (1, 100)
    pair.stages["a"].release_commits()
    pair.advance(26)
    assert (pair.window("a"), pair.window("b")) == (100, 100)


def test_a_silent_node_brakes_for_five_seconds_and_then_its_clients_are_expected() -> None:
    pair = Pair(replicated=True)
    pair.advance(1)
    pair.cut = True
    pair.advance(6)
    assert (pair.window("a"), pair.window("b")) == (50, 50)
    assert pair.stages["b"].node.guard.gate.limit == 4
    pair.advance(50)
    assert (pair.window("a"), pair.window("b")) == (100, 100)
