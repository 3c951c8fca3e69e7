"""The model check of links: schedules of traffic and faults over simulated nodes.

Hypothesis draws some schedules, and shrinks one that fails. It repeats parts of those that it has
drawn, so most of its schedules resemble each other. `run_at_random` draws independent ones, from
a seed. `python -m tests.flowguard.cluster.check` runs thousands, and counts what they did.
"""

from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from flowguard.cluster import links, mesh, routes
from tests.flowguard.cluster.node import Node, Parts
from tests.flowguard.cluster.world import World

NAMES = ["w1", "w2", "w3"]
nodes = st.sampled_from(NAMES)
FAULTS = [
    "crash",
    "die",
    "restart",
    "pause",
    "go_on",
    "full",
    "reject",
    "cut",
    "drop",
    "stall",
    "split",
]
MESSAGES_MAX = [3, 8, 20]
seeds = st.integers(0, 65_535)


class LinksMachine(RuleBasedStateMachine):
    """See the module."""

    parts = Parts(Node)
    """A mutant replaces it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(mesh, "OUTPUT_BYTES", 40)
        self.patch.setattr(links, "BATCH_MESSAGES_MAX", 2)
        self.patch.setattr(routes, "FILTERS_MAX", 2)
        self.patch.setattr(routes, "CHANGES_MAX", 3)

    @initialize(count=st.sampled_from([2, 3]), messages_max=st.sampled_from(MESSAGES_MAX))
    def start(self, count: int, messages_max: int) -> None:
        self.world = World(NAMES[:count], messages_max, self.parts)

    @rule(seed=seeds, count=st.integers(1, 20), steps=st.sampled_from([3, 10, 30]))
    def traffic(self, seed: int, count: int, steps: int) -> None:
        """Clients publish, subscribe and unsubscribe, and the nodes work meanwhile."""
        random = Random(seed)
        for _ in range(count):
            if random.random() < 0.8:
                self.world.publish(random)
            else:
                self.world.change_subscription(random)
            self.world.work(random, random.randrange(steps))

    @rule(seed=seeds, steps=st.sampled_from([10, 30, 100, 300]))
    def work(self, seed: int, steps: int) -> None:
        self.world.work(Random(seed), steps)

    @rule(seed=seeds, seconds=st.sampled_from([0.1, 3.0]))
    def time_passes(self, seed: int, seconds: float) -> None:
        self.world.tick(seconds)
        self.world.work(Random(seed), 30)

    @rule(
        kind=st.sampled_from(FAULTS),
        name=nodes,
        index=st.integers(0, 20),
    )
    def fault(self, kind: str, name: str, index: int) -> None:
        """Crashes with and without a restart, pauses, full disks, lost links and connections."""
        world = self.world
        if kind in ("crash", "die"):
            world.crash(name)
        if kind in ("crash", "restart"):
            world.restart(name)
        elif kind == "cut":
            world.cut(index)
        elif kind == "drop":
            world.clients[index % len(world.clients)].connection = None
        elif kind == "stall":
            self.stall(name, index)
        elif kind == "split" and name in world.stores:
            world.split_off(name)
        elif kind == "reject" and name in world.nodes:
            world.nodes[name].rejections_left = 1 + index % 3
        elif name in world.nodes:
            world.split = set()
            world.nodes[name].is_paused = kind == "pause"
            world.nodes[name].is_full = kind == "full"
            if kind == "full":
                world.nodes[name].mesh.reject("the disk is full")

    def stall(self, name: str, seed: int) -> None:
        """One node stands still while the others restart; then it reads what both lives sent."""
        world = self.world
        if name not in world.nodes:
            return
        world.nodes[name].is_paused = True
        random = Random(seed)
        for _ in range(2):
            for _ in range(5):
                world.publish(random)
                world.work(random, 20)
            for other in [each for each in world.stores if each != name]:
                world.crash(other)
                world.restart(other)
        world.work(random, 60)
        world.nodes[name].is_paused = False

    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and not self.world.ledger.is_broken:
                self.world.heal()
        finally:
            self.patch.undo()


def run_at_random(seed: int, parts: Parts) -> None:
    """Run one schedule of 5 to 50 rules."""
    random = Random(seed)
    machine = LinksMachine()
    machine.parts = parts
    try:
        machine.start(count=random.choice([2, 3]), messages_max=random.choice(MESSAGES_MAX))
        for _ in range(random.randrange(5, 50)):
            kind, seed = random.random(), random.randrange(65_536)
            if kind < 0.35:
                steps = random.choice([3, 10, 30])
                machine.traffic(seed=seed, count=random.randrange(1, 20), steps=steps)
            elif kind < 0.6:
                machine.work(seed=seed, steps=random.choice([10, 30, 100, 300]))
            elif kind < 0.7:
                machine.time_passes(seed=seed, seconds=random.choice([0.1, 3.0]))
            else:
                fault, name = random.choice(FAULTS), random.choice(NAMES)
                machine.fault(kind=fault, name=name, index=random.randrange(20))
    finally:
        machine.teardown()


TestLinks = LinksMachine.TestCase


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_invariants_hold_in_random_schedules(first: int) -> None:
    for seed in range(first, first + 50):
        run_at_random(seed, Parts(Node))
