"""Schedules of the model check of shards with leases: faults in random order, from a seed."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from flowguard.cluster import links, mesh, routes
from flowguard.cluster.shards import DEAD_MIN_S
from tests.flowguard.cluster.leases.lease_world import LeaseWorld
from tests.flowguard.cluster.leases.machines import LeaseParts, Machine, Process
from tests.flowguard.cluster.leases.model_redis import ModelRedis, patched

MACHINES = ["a", "b", "c"]
START_S = 6.0
LEASES_S = [1.0, 3.0]
DETECTION_S = 5.0
"""Bound of the time from the end of a lease until the shard runs again."""
FAULTS = [
    "traffic",
    "traffic",
    "stand still",
    "time",
    "time",
    "kill",
    "kill process",
    "start",
    "leave",
    "pause",
    "pause process",
    "go on",
    "cut",
    "split",
    "without redis",
    "pause redis",
    "lose answers",
    "replica lags",
    "fail over",
    "heal",
]
CALM = ["death", "join", "redis pause", "split", "alone", "cut", "fail over"]


@contextmanager
def world_of(
    redis: ModelRedis, random: Random, shards: int, lease_s: float, parts: LeaseParts
) -> Iterator[LeaseWorld]:
    from flowguard.stores.redis.lease import Lease
    from flowguard.stores.redis.store import RedisStore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh, "OUTPUT_BYTES", 40)
        patch.setattr(links, "BATCH_MESSAGES_MAX", 2)
        patch.setattr(routes, "FILTERS_MAX", 2)
        patch.setattr(routes, "CHANGES_MAX", 3)
        redis.begin(parts.text)
        world = LeaseWorld(redis, random, shards, lease_s, parts)
        patched(patch, world.through)
        if not parts.rewrites:
            patch.setattr(RedisStore, "_write_again", lambda store, link: None)
        if not parts.doubts:
            patch.setattr(Lease, "is_doubtful", lambda lease, now_s: False)
        try:
            yield world
        finally:
            world.close()


class Schedule:
    """The steps of one schedule."""

    def __init__(self, world: LeaseWorld) -> None:
        self.world = world
        self.random = world.random

    def start(self) -> None:
        for name in MACHINES[: self.random.choice([2, 3, 3])]:
            self.world.start(name)
        self.world.pass_time(START_S)

    def traffic(self) -> None:
        world, random = self.world, self.random
        for _ in range(random.randrange(1, 15)):
            if random.random() < 0.75:
                random.choice(world.publishers).publish(random.choice("ab"), random.choice((1, 2)))
            else:
                kind = random.choice(("subscribe", "subscribe", "unsubscribe"))
                random.choice(world.subscribers).ask(kind, random.choice("ab+#"))
            world.work(random.choice([3, 10, 30, 60]))

    def fault(self, kind: str) -> None:
        getattr(self, f"do_{kind.replace(' ', '_')}")()

    @property
    def machine(self) -> Machine | None:
        """One of the machines, or None if it does not run."""
        return self.world.machines.get(self.random.choice(MACHINES))

    @property
    def process(self) -> Process | None:
        """One of the processes, or None if there is none."""
        running = self.world.all_processes
        return self.random.choice(running) if running else None

    def disturb(self, *processes: Process) -> None:
        for process in processes:
            process.was_disturbed = True

    def do_traffic(self) -> None:
        self.traffic()

    def do_time(self) -> None:
        seconds = self.random.choice([0.1, 0.5, 2.0, 5.0])
        self.world.pass_time(seconds, self.random.choice([0, 12, 40]))

    def do_kill(self) -> None:
        self.world.kill(self.random.choice(MACHINES))

    def do_kill_process(self) -> None:
        if (process := self.process) is not None:
            self.world.counts["processes killed"] += 1
            process.kill()

    def do_start(self) -> None:
        self.world.start(self.random.choice(MACHINES))

    def do_leave(self) -> None:
        if (machine := self.machine) is not None:
            machine.leave()

    def do_pause(self) -> None:
        if (machine := self.machine) is not None:
            machine.is_paused = True
            self.disturb(*machine.processes.values())

    def do_pause_process(self) -> None:
        if (process := self.process) is not None:
            process.is_paused = True
            self.disturb(process)

    def do_go_on(self) -> None:
        for machine in self.world.all_machines:
            machine.is_paused = False
        for process in self.world.all_processes:
            process.is_paused = False

    def do_stand_still(self) -> None:
        """A machine is stopped until others own its shards, and then goes on."""
        machine = self.machine
        if machine is None or len(self.world.machines) == 1:
            return
        self.traffic()
        machine.is_paused = True
        self.disturb(*machine.processes.values())
        self.world.pass_time(self.world.lease_s + DETECTION_S)
        self.traffic()
        machine.is_paused = False
        self.traffic()

    def do_cut(self) -> None:
        if self.world.wires:
            self.random.choice(self.world.wires)[0].cut()

    def do_split(self) -> None:
        self.world.split_off(*self.random.sample(MACHINES, 2))

    def do_without_redis(self) -> None:
        if (machine := self.machine) is not None:
            self.world.without_redis ^= {machine.name}
            self.disturb(*machine.processes.values())

    def do_pause_redis(self) -> None:
        self.world.pause_redis()
        self.world.pass_time(self.random.choice([0.5, 1.5, 4.0]))
        self.world.resume_redis()

    def do_lose_answers(self) -> None:
        self.world.lose_answer = self.random.choice([0.0, 0.05, 0.2])

    def do_replica_lags(self) -> None:
        self.world.snapshot()

    def do_fail_over(self) -> None:
        self.world.fail_over()

    def do_heal(self) -> None:
        self.world.heal(MACHINES)

    # --- one fault at a time, in a cluster at rest -----------------------------------------------

    def calm(self, kind: str) -> None:
        world = self.world
        world.heal(MACHINES[:1] if kind == "join" else MACHINES)
        if kind == "join":
            for name in MACHINES[1:]:
                world.kill(name)
        world.rest()
        world.counts[f"calm: {kind}"] += 1
        getattr(self, f"calm_{kind.replace(' ', '_')}")()

    def calm_death(self) -> None:
        world = self.world
        world.kill(self.random.choice(list(world.machines)))
        world.pass_time(max(world.lease_s, DEAD_MIN_S) + DETECTION_S)
        if why := self.without_owner():
            world.ledger.fail(f"{why} after a lease and {DETECTION_S} s")

    def calm_join(self) -> None:
        for name in MACHINES[1:]:
            self.world.start(name)
        self.watch_moves()

    def calm_redis_pause(self) -> None:
        world, places = self.world, self.places()
        world.pause_redis()
        world.pass_time(self.random.choice([0.5, 1.0, 1.5, 2.0, 3.0, 8.0]))
        world.resume_redis()
        world.pass_time(2.0)
        self.must_be(places, "Redis was paused")

    def calm_split(self) -> None:
        world, places = self.world, self.places()
        world.split_off(*self.random.sample(MACHINES, 2))
        world.pass_time(2 * world.lease_s)
        self.must_be(places, "two nodes lost each other")
        self.must_not_wait()

    def calm_alone(self) -> None:
        """A machine that has lacked Redis acknowledges nothing that its successors must know."""
        world = self.world
        machine = self.random.choice(world.all_machines)
        world.without_redis.add(machine.name)
        self.disturb(*machine.processes.values())
        world.pass_time(max(world.lease_s, DEAD_MIN_S) + DETECTION_S)
        topic = self.subscribe({each.name for each in machine.processes.values()})
        for publisher in world.publishers:
            publisher.publish(topic, 1)
        world.pass_time(1.0)
        world.without_redis.clear()
        world.rest()

    def calm_cut(self) -> None:
        """All links are lost while the messages of a publisher are on their way."""
        topic, world = self.subscribe(), self.world
        publisher = self.random.choice(world.publishers)
        qos = self.random.choice((1, 2))
        for _ in range(6):
            publisher.publish(topic, qos)
            world.work(self.random.choice([3, 10, 30]))
        for wire, _ in world.wires:
            wire.cut()
        world.rest()

    def calm_fail_over(self) -> None:
        """Owners that live on write the lost tail again."""
        world, places = self.world, self.places()
        world.snapshot()
        self.traffic()
        world.pass_time(0.5)
        world.fail_over()
        world.rest()
        self.must_be(places, "a fail-over lost a tail")
        world.check_end()

    def subscribe(self, but: Collection[str] = ()) -> str:
        """Subscribe clients to a topic that their other filters do not match, `but` those of some
        shards."""
        topic = f"${self.world.tokens}"
        for each in self.world.subscribers:
            if each.owner not in but:
                each.ask("subscribe", topic)
        self.world.settle()
        return topic

    def places(self) -> dict[int, tuple[str, int]]:
        return {each.shard: (each.machine.name, each.incarnation) for each in self.world.processes}

    def must_be(self, before: dict[int, tuple[str, int]], why: str) -> None:
        if (after := self.places()) != before:
            self.world.ledger.fail(f"{why}, and shards moved: {before}, {after}")

    def must_not_wait(self) -> None:
        """No process waits for the lease of a shard whose owner lives."""
        waiting = [each.name for each in self.world.all_processes if each.node is None]
        if waiting:
            self.world.ledger.fail(f"two nodes lost each other, and {waiting} wait for a lease")

    def without_owner(self) -> str:
        lacking = set(range(self.world.shards_count)) - {
            each.shard for each in self.world.processes
        }
        return f"shards {lacking} have no owner" if lacking else ""

    def watch_moves(self) -> None:
        """While a node joins, at most one shard is without an owner at each time."""
        world = self.world
        for _ in range(100):
            world.pass_time(0.1)
            lacking = world.shards_count - len({each.shard for each in world.processes})
            if lacking > 1:
                world.ledger.fail(f"{lacking} shards move at once")


def run_at_random(
    redis: ModelRedis, seed: int, parts: LeaseParts, trace: Callable[[str], None] = lambda _: None
) -> None:
    """Run one schedule."""
    random = Random(seed)
    shards = random.choice([2, 3, 4])
    with world_of(redis, random, shards, random.choice(LEASES_S), parts) as world:
        schedule = Schedule(world)
        schedule.start()
        for _ in range(random.randrange(5, 30)):
            if random.random() < 0.06:
                kind = random.choice(CALM)
                trace(f"calm {kind}")
                schedule.calm(kind)
            else:
                kind = random.choice(FAULTS)
                trace(kind)
                schedule.fault(kind)
        world.heal(MACHINES)
        world.rest()
        world.check_end()
