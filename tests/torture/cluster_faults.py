"""Faults of a cluster over Redis, by name.

On any Redis:
kill, stop, term, worker  SIGKILL of a node, SIGSTOP for longer than a lease, SIGTERM; SIGKILL of a
             worker
duel         clients connect to one node after the other, and leave all connections open
clock        the wall clock of a node is set, a day too late or too early or right
On one server:
redis        it stands still (SIGSTOP)
restart      SIGKILL, and a start after a while
memory       it has no memory left
In a network:
cut, one-way, refused  between two nodes: no packet arrives, none of one direction, or the other
             end is unreachable
alone, all   one node does not reach Redis, or no node does
disk         the file systems of a node's data directory and of Redis are full
On a primary and its replica:
fail-over    SIGKILL of the primary; half of the times the two were cut off from each other before
both         the same, always after a cut, with SIGKILL of a node
On a Redis Cluster of 3 primaries and 3 replicas:
primary      SIGKILL of a primary; its replica takes its place
slots        slots move from primary to primary
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from tests.support.redis_cluster import RedisCluster
from tests.support.redis_pair import RedisPair
from tests.support.redis_server import RedisServer
from tests.torture.cluster_places import Place, fill, is_whole, role, slots_of
from tests.torture.network import REDIS
from tests.torture.nodes import Node
from tests.torture.players import Player

STOP_S = 8.0
"""Longer than a lease."""
REDIS_S = 5.0
AWAY_S = (0.0, 8.0)
"""Time between the end of a process and its next start."""
CUT_S = (2.0, 10.0)
"""Shorter or longer than a lease, and than the time after which a silent connection is lost."""
FULL_S = 2.0
FULL_BYTES = 64 * 1024
DUEL_S = 2.0
LINE_S = 0.5
"""Time without replication before a fail-over."""
SLOTS = 5
WRONG_S = (0.0, 86_400.0, -86_400.0)


class Nemesis:
    """What the faults need of a run, and what they have done."""

    def __init__(self, place: Place, nodes: list[Node], random: Random) -> None:
        self.place = place
        self.nodes = nodes
        self.random = random
        self.network = place.network
        self.due: list[tuple[float, Callable[[], None]]] = []
        """Acts to come, and their times."""
        self.redis_is_away = False
        self._back_s = 0.0
        """The time when Redis was away last."""
        self.duel_until_s = 0.0
        self.tell: Callable[[str], None] = lambda text: None
        self.findings: list[str] = []
        self._mover: threading.Thread | None = None

    def begin(self, name: str) -> bool:
        """Begin a fault. Return False if it cannot be now."""
        return FAULTS[name][1](self)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.due.append((time.monotonic() + seconds, act))

    def act(self) -> None:
        """Do what is due."""
        now_s = time.monotonic()
        if self.redis_is_away or (self.network is not None and self.network.is_cut(REDIS)):
            self._back_s = now_s
        for item in [each for each in self.due if each[0] <= now_s]:
            self.due.remove(item)
            item[1]()

    def may_lack_redis(self, node: Node) -> bool:
        """Return True if a node that has ended had no Redis when it started."""
        return self._back_s > node.started_s

    def finish(self) -> None:
        """End all faults; nothing may fail."""
        if self._mover is not None:
            self._mover.join()
        for server in self._servers():
            if server.is_running:
                server.resume()

    def _servers(self) -> list[RedisServer]:
        redis = self.place.redis
        if isinstance(redis, RedisCluster):
            return redis.nodes
        return [redis.primary, redis.replica] if isinstance(redis, RedisPair) else [redis]

    def leaves(self, player: Player, address: tuple[str, int]) -> bool:
        """Return True if a client connects elsewhere now, because of a fault."""
        if time.monotonic() < self.duel_until_s:
            return player.random.random() < 0.1
        if player.random.random() > 0.005:
            return False
        node = next(node for node in self.nodes if node.for_clients == address)
        return node.is_stopped or (self.network is not None and self.network.is_cut(node.host))

    def _victim(self) -> Node | None:
        """Return a node that serves, unless it is the last one."""
        serving = [node for node in self.nodes if node.serves]
        return self.random.choice(serving) if len(serving) > 1 else None

    # --- processes -------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        self.tell(f"starts {node.name}")
        node.start()

    def start_later(self, node: Node) -> None:
        self.after(self.random.uniform(*AWAY_S), partial(self.start, node))

    def kill(self) -> bool:
        node = self._victim()
        if node is not None:
            node.kill()
            self.tell(f"killed {node.name}")
            self.start_later(node)
        return node is not None

    def stop(self) -> bool:
        node = self._victim()
        if node is None:
            return False

        def resume() -> None:
            self.tell(f"resumes {node.name}")
            node.resume()

        node.stop()
        self.tell(f"stopped {node.name}")
        self.after(STOP_S, resume)
        return True

    def term(self) -> bool:
        node = self._victim()
        if node is not None:
            node.terminate()
            self.tell(f"terminated {node.name}")
        return node is not None

    def kill_worker(self) -> bool:
        node = self._victim()
        if node is None or not node.kill_worker(self.random):
            return False
        self.tell(f"killed a worker of {node.name}")
        return True

    def duel(self) -> bool:
        self.duel_until_s = time.monotonic() + DUEL_S
        self.tell("duels")
        return True

    def set_clock(self) -> bool:
        node = self.random.choice(self.nodes)
        offset_s = self.random.choice(WRONG_S)
        node.set_clock(offset_s)
        self.tell(f"the clock of {node.name} is wrong by {offset_s} s")
        if self.random.random() < 0.5:  # A shard moves between clocks.
            self.kill()
        return True

    # --- one server ------------------------------------------------------------------------------

    def _away(self, seconds: float, back: Callable[[], object], what: str) -> None:
        """Redis is unavailable until `back`."""
        self.redis_is_away = True
        self.tell(f"redis {what}")

        def end() -> None:
            back()
            self.redis_is_away = False
            self.tell("redis is back")

        self.after(seconds, end)

    def pause_redis(self) -> bool:
        if self.redis_is_away:
            return False
        self.place.redis.pause()
        self._away(REDIS_S, self.place.redis.resume, "paused")
        return True

    def restart_redis(self) -> bool:
        if self.redis_is_away:
            return False
        self.place.redis.kill()
        self._away(self.random.uniform(0, REDIS_S), self.place.redis.start, "killed")
        return True

    def fill_memory(self) -> bool:
        if self.redis_is_away:
            return False

        def limit(bytes_max: int) -> None:
            with self.place.redis.client() as client:
                client.config_set("maxmemory", bytes_max)

        with self.place.redis.client() as client:
            limit(client.info("memory")["used_memory"] + FULL_BYTES)
        self._away(FULL_S, partial(limit, 0), "has no memory")
        return True

    # --- a network -------------------------------------------------------------------------------

    def _cut(self, pairs: list[tuple[str, str]], *, refuses: bool = False) -> bool:
        assert self.network is not None
        names = {node.host: node.name for node in self.nodes} | {REDIS: "redis"}
        seconds = self.random.uniform(*CUT_S)
        for source, target in pairs:
            self.network.cut(source, target, refuses=refuses)
            self.after(seconds, partial(self.network.heal, source, target))
        ways = ", ".join(f"{names[source]} to {names[target]}" for source, target in pairs)
        self.tell(f"cut for {seconds:.1f} s: {ways}")
        return True

    def _pair(self) -> tuple[str, str]:
        first, second = self.random.sample(self.nodes, 2)
        return first.host, second.host

    def cut_pair(self, *, refuses: bool = False) -> bool:
        pair = self._pair()
        return self._cut([pair, pair[::-1]], refuses=refuses)

    def cut_one_way(self) -> bool:
        return self._cut([self._pair()])

    def refuse_pair(self) -> bool:
        return self.cut_pair(refuses=True)

    def cut_redis(self) -> bool:
        """Cut one node off from Redis."""
        host = self.random.choice(self.nodes).host
        ways = [(host, REDIS), (REDIS, host)]
        return self._cut(ways if self.random.random() < 0.7 else ways[:1])

    def cut_redis_off(self) -> bool:
        """Cut all nodes off from Redis."""
        return self._cut([(node.host, REDIS) for node in self.nodes])

    def fill_disk(self) -> bool:
        if self.redis_is_away:
            return False
        redis = self.place.redis
        node = self.random.choice(self.nodes)
        folders = [node.folder / "data"]
        if self.random.random() < 0.5:
            folders.append(redis.folder)
        for folder in folders:
            fill(folder)

        def free() -> None:
            for folder in folders:
                (folder / "full").unlink()
            if len(folders) > 1:  # It ends if it cannot write.
                redis.kill()
                redis.start()

        self._away(2 * FULL_S, free, f"or {node.name} has a full disk")
        self.kill()
        return True

    # --- several servers -------------------------------------------------------------------------

    def fail_over(self) -> bool:
        pair = self.place.redis
        if self.redis_is_away or not pair.is_whole():
            return False
        seconds = 0.0
        if self.random.random() < 0.5:
            pair.cut()
            seconds = LINE_S
        self._away(seconds, pair.fail_over, "has a fail-over")
        return True

    def fail_over_with_node(self) -> bool:
        pair = self.place.redis
        if self.redis_is_away or not pair.is_whole():
            return False
        pair.cut()

        def end() -> None:
            self.kill()
            pair.fail_over()

        self._away(LINE_S, end, "has a fail-over")
        return True

    def kill_primary(self) -> bool:
        cluster = self.place.redis
        if (
            self.redis_is_away
            or not cluster.is_served()
            or self._is_moving
            or not is_whole(cluster)
        ):
            return False
        node = self.random.choice([node for node in cluster.nodes if role(node) == "master"])
        slot = next(iter(slots_of(cluster, node)))
        others = [each for each in cluster.nodes if each is not node]
        node.kill()
        self.redis_is_away = True
        self.tell("primary of redis killed")

        def look() -> None:
            if cluster.primary_of(slot, others) is node:
                self.after(0.2, look)
            else:
                self.tell("its replica is primary")
                self.after(self.random.uniform(0, 3.0), back)

        def back() -> None:
            node.start()
            self.after(0.2, wait)

        def wait() -> None:
            if is_whole(cluster):
                self.redis_is_away = False
                self.tell("redis is whole")
            else:
                self.after(0.2, wait)

        self.after(0.5, look)
        return True

    @property
    def _is_moving(self) -> bool:
        return self._mover is not None and self._mover.is_alive()

    def move_slots(self) -> bool:
        cluster = self.place.redis
        if self.redis_is_away or self._is_moving:
            return False
        chance = Random(self.random.random())

        def move() -> None:
            try:
                primaries = [node for node in cluster.nodes if role(node) == "master"]
                for _ in range(SLOTS):
                    with chance.choice(primaries).client() as client:
                        key = client.randomkey()
                        slot = client.execute_command("CLUSTER", "KEYSLOT", key)
                    cluster.move(slot, chance.choice(primaries), pause_s=0.002)
            except BaseException as error:
                self.findings.append(f"slots do not move: {error!r}")
                raise

        self._mover = threading.Thread(target=move, daemon=True)
        self._mover.start()
        self.tell("slots move")
        if self.random.random() < 0.5:  # A shard moves meanwhile.
            self.random.choice((self.kill, self.term))()
        return True


FAULTS: Final[dict[str, tuple[str, Callable[[Nemesis], bool]]]] = {
    "kill": ("", Nemesis.kill),
    "stop": ("", Nemesis.stop),
    "term": ("", Nemesis.term),
    "worker": ("", Nemesis.kill_worker),
    "duel": ("", Nemesis.duel),
    "clock": ("", Nemesis.set_clock),
    "redis": ("server", Nemesis.pause_redis),
    "restart": ("server", Nemesis.restart_redis),
    "memory": ("server", Nemesis.fill_memory),
    "cut": ("network", Nemesis.cut_pair),
    "one-way": ("network", Nemesis.cut_one_way),
    "refused": ("network", Nemesis.refuse_pair),
    "alone": ("network", Nemesis.cut_redis),
    "all": ("network", Nemesis.cut_redis_off),
    "disk": ("network", Nemesis.fill_disk),
    "fail-over": ("pair", Nemesis.fail_over),
    "both": ("pair", Nemesis.fail_over_with_node),
    "primary": ("cluster", Nemesis.kill_primary),
    "slots": ("cluster", Nemesis.move_slots),
}
"""The kind of place that a fault needs, or "" if any will do, and the fault."""
LEVEL_OF: Final = {
    "server": "fsync",
    "network": "fsync",
    "pair": "replicated",
    "cluster": "fsync+replicated",
}
"""The level of durability that keeps everything, by kind of place."""


def kind_of(names: list[str]) -> str:
    """Return the kind of place for these faults. Raises ValueError if there is none for all."""
    kinds = {FAULTS[name][0] for name in names} - {""}
    if kinds == {"server", "network"}:
        return "network"
    if len(kinds) > 1:
        raise ValueError(f"no place has all of {', '.join(names)}")
    return kinds.pop() if kinds else "server"
