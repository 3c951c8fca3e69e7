"""Shards of a cluster: which node is to run each of them, without IO.

A cluster has a fixed number of shards. Each client id belongs to one of them
(`flowguard.cluster.members`), and a worker process on one of the nodes owns all sessions of a
shard. All nodes read one table, and decide by it alone, so they come to the same result. Where two
nodes read it at different moments, the lease of the shard decides (`flowguard.stores.redis.lease`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

GAP_S: Final = 2.0
"""Time between two signs of life after which this node judges no other for a while, seconds."""
SETTLE_S: Final = 1.0
"""Age of the oldest node from which on nodes take shards that no living node has, seconds. Nodes
that start together know each other by then."""
DEAD_MIN_S: Final = 3.0
"""Minimum age of the last sign of life of a dead node, seconds. A sign may be as old as GAP_S and
two intervals of signs because Redis stood still, which no node has noticed then."""


class ShardState(StrEnum):
    """State of a shard, as the node that runs it says. A node of a newer version may have others,
    which are shown as they are."""

    STARTING = "starting"
    """A process for it starts, perhaps again."""
    WAITING = "waiting"
    """It opens its store, or waits for the lease of its last owner."""
    ADOPTING = "adopting"
    """It has the lease, and reads the sessions."""
    SERVES = "serves"
    SILENT = "silent"
    """The process does not answer."""
    ENDING = "ending"
    """It ends, because another node is to run it."""
    DOWN = "down"
    """No living node runs it."""


class MoveReason(StrEnum):
    NEW = "new"
    """No node ever ran the shard."""
    LOST = "lost"
    """The last node of the shard has died, or has left."""
    LEAVING = "leaving"
    """The node of the shard gives its shards away."""
    RESTART = "restart"
    """This node has run the shard before its own restart."""
    BALANCE = "balance"
    """The parts of the nodes become more equal."""


@final
@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as the table has it."""

    name: str
    """The address for the other nodes, HOST:PORT."""
    shards_max: int
    is_leaving: bool = False
    """True if it gives its shards away and takes none."""
    http: str = ""
    """The URL of its page, or "" if other machines do not reach it."""
    alive_s: float = 0.0
    """Time since its start, seconds."""
    states: Mapping[str, str] = field(default_factory=dict)
    """`ShardState` of the shards that it runs, by their number."""
    gives: int | None = None
    """The shard that it gives away now, or None."""
    awaits: tuple[int, ...] = ()
    """Shards whose workers run here and wait for the lease."""
    clients: int = 0
    """Number of connected clients of its shards."""
    slots: int = 0
    """Number of CONNECTs that the gates of its shards would admit at once; 0 if some wait."""
    reference: str = ""
    """The address of the node for clients, or "" if unknown."""
    later: Mapping[str, int] = field(default_factory=dict)
    """Incarnations, by shard, that it has met and that the table lacks, after a fail-over of Redis
    that has lost them."""


class ShardMove(NamedTuple):
    """A shard that is to move."""

    shard: int
    giver: str
    taker: str


@final
class SignsOfLife:
    """The living nodes, by the ages of their last signs and by the signs of this node.

    A node is dead if its last sign of life is older than a lease and DEAD_MIN_S. While Redis is
    unavailable, there are no signs. So a node judges others only when it has given its own without
    a gap for that time.
    """

    def __init__(self, lease_s: float, now_s: float) -> None:
        """This node has just given its first sign of life."""
        self._dead_s = max(lease_s, DEAD_MIN_S)
        self._met_s = self._steady_since_s = now_s

    def met(self, now_s: float) -> None:
        """This node has given a sign of life."""
        if now_s - self._met_s > GAP_S:
            self._steady_since_s = now_s
        self._met_s = now_s

    def living(self, ages_s: Mapping[str, float]) -> set[str]:
        """Return the living nodes; those that cannot be judged yet are among them."""
        if self._met_s - self._steady_since_s < self._dead_s:
            return set(ages_s)
        return {name for name, age_s in ages_s.items() if age_s <= self._dead_s}


def assigned(living: Iterable[NodeRecord], homes: Mapping[int, str], count: int) -> dict[int, str]:
    """Return the name of the node that is to run each of `count` shards.

    `homes` has the node that ran a shard last. A shard stays at that node if it lives. Others go to
    the nodes with the fewest; a shard is absent if all nodes have their maximum. Then one shard
    moves, if its node gives it away (`next_move`). The result is the same until its new node has
    it.
    """
    nodes, found, loads = _placed(living, homes, count)
    move = _move(nodes, found, loads)
    if move is not None and nodes[move.giver].gives == move.shard:
        found[move.shard] = move.taker
    return found


def without_new(
    duties: Mapping[int, str], living: Iterable[NodeRecord], homes: Mapping[int, str]
) -> dict[int, str]:
    """Return these duties without those that must wait until the nodes of a new cluster know each
    other: else the first one takes all shards, and then gives most of them away."""
    if any(node.alive_s >= SETTLE_S for node in living):
        return dict(duties)
    return {shard: name for shard, name in duties.items() if homes.get(shard) == name}


def next_move(
    living: Iterable[NodeRecord], homes: Mapping[int, str], count: int
) -> ShardMove | None:
    """Return the shard that is to move next: one of a node that is leaving, or one whose move makes
    the nodes more equal. Return None if no shard is to move, or none can."""
    return _move(*_placed(living, homes, count))


def _placed(
    living: Iterable[NodeRecord], homes: Mapping[int, str], count: int
) -> tuple[dict[str, NodeRecord], dict[int, str], Counter[str]]:
    """Return the nodes by name, the node of each shard before the next move, and the number of
    shards of each node."""
    nodes = {node.name: node for node in living}
    found = {shard: home for shard, home in homes.items() if shard < count and home in nodes}
    loads = Counter(found.values())
    for shard in range(count):
        if shard not in found and (taker := _freest(nodes, loads)) is not None:
            found[shard] = taker.name
            loads[taker.name] += 1
    return nodes, found, loads


def reason_of(home: NodeRecord | None, name: str) -> MoveReason:
    """Return why a shard moves; `home` is its last node, called `name`, or None if it is dead."""
    if not name:
        return MoveReason.NEW
    if home is None:
        return MoveReason.LOST
    return MoveReason.LEAVING if home.is_leaving else MoveReason.BALANCE


def _freest(nodes: Mapping[str, NodeRecord], loads: Mapping[str, int]) -> NodeRecord | None:
    """Return the node with the smallest part of its maximum, or None if all have reached it."""
    takers = [
        node
        for node in nodes.values()
        if not node.is_leaving and loads.get(node.name, 0) < node.shards_max
    ]
    return min(
        takers,
        key=lambda node: (loads.get(node.name, 0) / node.shards_max, node.name),
        default=None,
    )


def _move(
    nodes: Mapping[str, NodeRecord], found: Mapping[int, str], loads: Mapping[str, int]
) -> ShardMove | None:
    taker = _freest(nodes, loads)
    givers = [node for node in nodes.values() if loads.get(node.name, 0)]
    if taker is None or not givers:
        return None
    shards = {node.name: [each for each in found if found[each] == node.name] for node in givers}
    giver = max(
        givers,
        key=lambda node: (
            node.gives in shards[node.name],  # A move that has begun goes on.
            node.is_leaving,
            loads[node.name] / node.shards_max,
            node.name,
        ),
    )
    after = (loads.get(taker.name, 0) + 1) / taker.shards_max
    if not giver.is_leaving and loads[giver.name] / giver.shards_max <= after:
        return None
    own = shards[giver.name]
    shard = giver.gives if giver.gives in own else max(own)
    return ShardMove(shard, giver.name, taker.name)
