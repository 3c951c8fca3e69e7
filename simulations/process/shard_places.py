"""ShardPlaces: the node that serves each shard of a cluster, over virtual time.

The decisions are those of `flowguard serve --cluster`: `SignsOfLife` and `assigned`. All nodes read
one table, so one object stands for all of them. The table itself costs nothing and never fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from flowguard.cluster.members import owner_among
from flowguard.cluster.shards import NodeRecord, SignsOfLife, assigned, next_move
from simulations.engine import Engine
from simulations.scenario import NetworkPlan

INTERVAL_S: Final = 0.5
"""Interval of signs of life, seconds."""


@final
class ShardPlaces:
    def __init__(
        self,
        plan: NetworkPlan,
        engine: Engine,
        nodes: Sequence[str],
        is_alive: Callable[[int], bool],
        on_move: Callable[[int], None],
    ) -> None:
        """`is_alive` tells whether a process runs at a node. `on_move` is called with a shard whose
        node has given it away or is dead."""
        self._plan = plan
        self._engine = engine
        self._nodes = nodes
        self._is_alive = is_alive
        self._on_move = on_move
        self._signs = SignsOfLife(plan.lease_s, engine.now_s)
        self._seen_s = dict.fromkeys(nodes, engine.now_s)
        self._homes: dict[int, str] = {}
        self._homes = self._decided()
        self._moves: dict[int, tuple[str, float]] = {}
        """New node of each shard that moves, and the time when it serves there."""
        self._shards: dict[str, bytes] = {}
        engine.at(engine.now_s + INTERVAL_S, self._look, None)

    def shards_of(self, population: str, clients: int) -> bytes:
        """Return the shard of each client of a population."""
        found = self._shards.get(population)
        if found is None:
            names = [str(shard) for shard in range(self._plan.shards)]
            ids = (f"{population}-{client}" for client in range(clients))
            found = self._shards[population] = bytes(int(owner_among(names, key)) for key in ids)
        return found

    def node_of(self, shard: int) -> int | None:
        """Return the node that serves a shard now, or None."""
        if shard in self._moves or shard not in self._homes:
            return None
        return self._nodes.index(self._homes[shard])

    def _decided(self) -> dict[int, str]:
        now_s = self._engine.now_s
        living = self._signs.living({name: now_s - at for name, at in self._seen_s.items()})
        records = [NodeRecord(name, self._plan.shards) for name in sorted(living)]
        move = next_move(records, self._homes, self._plan.shards)
        if move is not None:  # Here a node gives a shard away at once.
            givers = {move.giver: move.shard}
            records = [replace(node, gives=givers.get(node.name)) for node in records]
        return assigned(records, self._homes, self._plan.shards)

    def _look(self, _: None) -> None:
        now_s = self._engine.now_s
        for index, name in enumerate(self._nodes):
            if self._is_alive(index):
                self._seen_s[name] = now_s
        self._signs.met(now_s)
        for shard, name in self._decided().items():
            if self._homes.get(shard) == name:
                self._moves.pop(shard, None)
                continue
            move = self._moves.get(shard)
            if move is None or move[0] != name:
                self._moves[shard] = (name, now_s + self._plan.start_s)
                self._on_move(shard)
            elif now_s >= move[1]:
                self._homes[shard] = name
                del self._moves[shard]
        self._engine.at(now_s + INTERVAL_S, self._look, None)
