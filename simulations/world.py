"""World: a scenario under one policy, from the first arrival to the end.

A scenario and a policy always give the same world, event for event.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Literal, final

from flowguard.cluster.pressure import LOST_S, PressureRecord
from flowguard.config import FlowSettings, PolicyName, SessionSettings
from flowguard.flow.load.histogram import LATENCY_BOUNDS_S, Histogram
from simulations import baselines
from simulations.crowd.clients import Population
from simulations.crowd.connection import Attempt, Outcome
from simulations.crowd.publishers import Publishers
from simulations.crowd.topics import Message, Topic
from simulations.draws import random_for
from simulations.engine import Engine
from simulations.invariants import Invariants, Violation
from simulations.process.machine import Faults, Machine, Network, name_of
from simulations.process.shard_places import ShardPlaces
from simulations.scenario import PopulationPlan, Scenario

baselines.load()  # The laws that flowguard is compared with.


@final
class World:
    def __init__(
        self,
        scenario: Scenario,
        policy: PolicyName,
        *,
        on_attempt: Callable[[Attempt], None] | None = None,
        traced: bool = False,
    ) -> None:
        """`on_attempt` is called for every attempt when its client knows how it ended."""
        self.scenario = scenario
        self.settings: FlowSettings = scenario.flow.model_copy(update={"policy": policy})
        self.session = SessionSettings()
        self.on_attempt = on_attempt
        self.engine = Engine(traced=traced)
        self.network = Network()
        self.living: list[int] = []
        """Nodes with a running process."""
        self.ended_s: float | None = None
        self._lateness = random_for(scenario.seed, "gossip")
        self.invariants: Invariants | None = None
        self.violation: Violation | None = None
        self._unreachable_since_s: dict[tuple[int, int], float] = {}
        self.machines = [Machine(self, index) for index in range(scenario.nodes)]
        self.populations: list[Population] = []
        self.places: ShardPlaces | None = None
        if any(plan.node == "shard" for plan in scenario.populations.values()):
            names = [machine.name for machine in self.machines]
            self.places = ShardPlaces(
                scenario.network, self.engine, names, self._is_alive, self._give_away
            )
        self._populate()
        self._waiting_count = scenario.clients
        """Clients that were never connected and have not given up."""
        for machine in self.machines:
            machine.start()
        Faults(self).schedule()
        for population in self.populations:
            population.start()

    def _populate(self) -> None:
        for name, plan in self.scenario.populations.items():
            self.populations.append(Population(self, name, plan))
        by_name = {population.name: population for population in self.populations}
        for population in self.populations:
            self._give_voice(population, population.plan, by_name)

    def _is_alive(self, node: int) -> bool:
        return self.machines[node].broker is not None

    def _give_away(self, shard: int) -> None:
        """The node of a shard ends the connections of its clients."""
        assert self.places is not None
        for population in self.populations:
            if population.plan.node != "shard":
                continue
            shards = self.places.shards_of(population.name, population.clients)
            for connection in list(population.connections):
                if connection is None or shards[connection.client] != shard:
                    continue
                if connection.outcome is Outcome.CONNECTED and connection.is_alive:
                    population.closed(connection, self.engine.now_s)
                    connection.broker.hang_up(connection)

    def _give_voice(
        self, population: Population, plan: PopulationPlan, by_name: dict[str, Population]
    ) -> None:
        publish = plan.publish
        if publish is None:
            return
        population.publishers = Publishers(
            population.name, plan.clients, publish, self.scenario, self.session, self.engine
        )
        population.topic = Topic(
            publish.payload_bytes,
            None if publish.to is None else by_name[publish.to],
            to_all=publish.spread == "all",
            latency_s=self.scenario.network.latency_s,
            stored=publish.stored,
        )

    # --- all populations together ------------------------------------------------------------

    @property
    def acknowledgements(self) -> Histogram:
        return _sum_of(p.publishers.acknowledgements for p in self.populations if p.publishers)

    @property
    def deliveries(self) -> Histogram:
        return _sum_of(p.topic.deliveries for p in self.populations if p.topic)

    # --- time --------------------------------------------------------------------------------

    def run(self, until_s: float = inf) -> None:
        """Run to the end, or at most to `until_s`, from which it can go on. Steps do not change the
        result."""
        duration_s = self.scenario.duration_s
        if self.ended_s is None and self.engine.run(min(until_s, duration_s)):
            self.ended_s = duration_s if until_s >= duration_s else None
        if self.ended_s is not None and self.invariants is not None:
            self.invariants.at_end()

    def violate(self, node: int | None, invariant: str, detail: str) -> None:
        """End the run with the present event, because an invariant does not hold."""
        if self.violation is None:
            now_s, policy, seed = self.engine.now_s, self.settings.policy, self.scenario.seed
            self.violation = Violation(node, now_s, invariant, detail, policy, seed)
            self.ended_s = now_s
            self.engine.stop()

    @property
    def ended_by(self) -> Literal["duration", "connected", "violation", "stopped"]:
        """The end of the run, as table `end` has it (docs/reference/parquet-schema.md)."""
        if self.violation is not None:
            return "violation"
        if self.ended_s is None:
            return "stopped"
        return "duration" if self.ended_s >= self.scenario.duration_s else "connected"

    def on_decided(self) -> None:
        """Count a client that has been connected, or has given up before."""
        self._waiting_count -= 1
        if self._waiting_count <= 0 and self.scenario.ends_when_connected:
            self.ended_s = self.engine.now_s
            self.engine.stop()

    # --- nodes -------------------------------------------------------------------------------

    def on_life(self) -> None:
        self.living = [m.index for m in self.machines if m.broker is not None]

    def reaches(self, one: int, other: int) -> bool:
        """Return True if messages pass between two nodes."""
        return self.machines[other].broker is not None and self.network.is_up(one, other)

    def replicas_of(self, index: int) -> list[Machine]:
        """Return the machines that store this node's data, without those that are lost for long."""
        nodes = self.scenario.nodes
        replicas = []
        for distance in range(1, self.scenario.network.replicas):
            peer = (index + distance) % nodes
            if self.reaches(index, peer):
                self._unreachable_since_s.pop((index, peer), None)
            else:
                now_s = self.engine.now_s
                since_s = self._unreachable_since_s.setdefault((index, peer), now_s)
                if now_s - since_s >= LOST_S:
                    continue
            replicas.append(self.machines[peer])
        return replicas

    def path_of(self, index: int) -> frozenset[str]:
        """Return the nodes that a message published on this node touches: itself, its replicas, and
        all that may have subscribers of it."""
        scenario = self.scenario
        everywhere = tuple(range(scenario.nodes))
        nodes = {
            (index + distance) % scenario.nodes for distance in range(scenario.network.replicas)
        }
        for plan in scenario.populations.values():
            publish = plan.publish
            if publish and publish.to is not None and index in (plan.at or everywhere):
                nodes.update(scenario.populations[publish.to].at or everywhere)
        return frozenset(name_of(node) for node in nodes)

    def gossip(self, origin: int, record: PressureRecord, sent_s: float) -> None:
        """Send a node's record to all others."""
        network = self.scenario.network
        arrives_s = sent_s + network.peer_latency_s
        for machine in self.machines:
            if machine.index != origin and self.reaches(origin, machine.index):
                broker = machine.broker
                assert broker is not None
                late_s = network.gossip_late_s and network.gossip_late_s * self._lateness.random()
                self.engine.at(arrives_s + late_s, broker.hear, record)

    def forward(
        self, origin: int, node: int, message: Message, deliveries: int, sent_s: float
    ) -> None:
        """Send a message to the subscribers of another node; it is lost if that is unreachable."""
        broker = self.machines[node].broker
        if broker is not None and self.network.is_up(origin, node):
            arrives_s = sent_s + self.scenario.network.peer_latency_s
            self.engine.at(arrives_s, lambda _: broker.forward(message, deliveries), None)
        else:
            self.lose(message, deliveries)

    def lose(self, message: Message, deliveries: int) -> None:
        """Count an acknowledged message as lost for `deliveries` subscribers."""
        self.machines[message.node].counters.lost_count += deliveries


def _sum_of(parts: Iterable[Histogram]) -> Histogram:
    """Add up histograms with the same bounds."""
    total = None
    for part in parts:
        if total is None:
            total = Histogram(part.bounds)
        total.add(part)
    return Histogram(LATENCY_BOUNDS_S) if total is None else total
