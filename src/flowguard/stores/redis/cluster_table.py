"""ClusterTable: the table of a cluster in Redis, of its nodes and of the places of its shards.

    <prefix>:cluster  hash  shards: their number; n<name>: a node's last sign of life, milliseconds,
                            its id, and its record in JSON; s<K>: the last incarnation of shard K,
                            and the node that has claimed it; d<name>: the node takes no shards,
                            until it starts again or this field is removed
    <prefix>.<K>:...        the store of shard K (`keys`)

Incarnations are epochs of the shard's lease. The times are Redis's own, so the clocks of nodes do
not matter.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Final, final

from flowguard.cluster.shards import NodeRecord
from flowguard.config import Settings
from flowguard.errors import ConfigError, LeasedError
from flowguard.stores.redis.connection.cluster import is_cluster
from flowguard.stores.redis.connection.opening import open_link
from flowguard.stores.redis.connection.server import check_server, promise_of
from flowguard.stores.redis.lua.functions import MARK, MEET

SUFFIX: Final = ":cluster"
_KNOWN: Final = frozenset(field.name for field in fields(NodeRecord))


@final
@dataclass(frozen=True, slots=True)
class ShardHome:
    node: str
    incarnation: int


@final
@dataclass(frozen=True, slots=True)
class ClusterView:
    nodes: Mapping[str, NodeRecord]
    ages_s: Mapping[str, float]
    """Time since the last sign of life of each node, seconds."""
    shards: Mapping[int, ShardHome]
    """The last node of each shard that was ever claimed."""
    drained: frozenset[str] = frozenset()
    """Nodes that are to take no shards (`ClusterTable.mark`)."""


@final
class ClusterTable:
    """One node's access to the table. Call it from one thread at a time."""

    def __init__(
        self,
        settings: Settings,
        node_id: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Connect. `node_id` tells this node from others that have its address.

        Raises ConfigError if the server cannot provide the durability, `StoreError`.
        """
        redis = settings.redis
        self._prefix = redis.prefix
        self._id = node_id
        self._lease_ms = round(1_000 * redis.lease_s)
        self._shards_count = settings.cluster.shards
        self._key = f"{redis.prefix}{SUFFIX}".encode()
        promise = promise_of(settings.store.durability, redis.replicas)
        greet = partial(check_server, promise=promise, in_cluster=is_cluster(redis.url))
        self._link = open_link(redis.url, redis.timeout_s, greet, clock=clock, sleep=sleep)

    def meet(self, node: NodeRecord, claimed: Mapping[int, int]) -> ClusterView:
        """Note a sign of life, and the incarnations of the shards that this node has claimed.

        Raises `LeasedError`, `StallError`, other `StoreError`, and ConfigError if the cluster
        has another number of shards.
        """
        return self._call(node.name, json.dumps(asdict(node)), claimed)

    def mark(self, names: Iterable[str], *, is_drained: bool) -> None:
        """Let these nodes take no shards and give theirs away, or end that. Raises `StoreError`."""
        self._link.call(MARK, [self._key], ["1" if is_drained else "", *names])

    def leave(self, name: str) -> None:
        """Remove the record of a node that ends. Raises as `meet`."""
        self._call(name, "", {})

    def _call(self, name: str, record: str, claimed: Mapping[int, int]) -> ClusterView:
        words: list[str | int] = [name, record, self._shards_count, self._id, self._lease_ms]
        for shard, incarnation in claimed.items():
            words += (shard, incarnation)
        ((now_ms, flat),) = self._link.call(MEET, [self._key], words)
        rows = {
            key.decode(): value.decode() for key, value in zip(flat[::2], flat[1::2], strict=True)
        }
        count = int(rows.pop("shards"))
        if count != self._shards_count:
            raise ConfigError(
                f"cluster.shards is {self._shards_count}, and the cluster below "
                f"{self._prefix}: in {self._link.where} has {count}: set it to {count}, "
                "or choose another redis.prefix"
            )
        if record and rows[f"n{name}"].split(" ")[1] != self._id:
            raise LeasedError(
                f"another node lives at cluster.address {name}: give each node another address"
            )
        return _table(rows, int(now_ms))

    def close(self) -> None:
        self._link.close()


def _table(rows: Mapping[str, str], now_ms: int) -> ClusterView:
    nodes: dict[str, NodeRecord] = {}
    ages_s: dict[str, float] = {}
    shards: dict[int, ShardHome] = {}
    for key, value in rows.items():
        number, _, rest = value.partition(" ")
        if key.startswith("n"):
            _, _, rest = rest.partition(" ")
            node = _record(json.loads(rest))
            nodes[node.name] = replace(node, is_leaving=node.is_leaving or f"d{node.name}" in rows)
            ages_s[node.name] = (now_ms - int(number)) / 1_000
        elif key.startswith("s"):
            shards[int(key[1:])] = ShardHome(rest, int(number))
    drained = frozenset(name for name in nodes if f"d{name}" in rows)
    return ClusterView(nodes, ages_s, shards, drained)


def _record(values: Mapping[str, Any]) -> NodeRecord:
    """Return the record of a node, without what only a newer version knows."""
    known = {name: value for name, value in values.items() if name in _KNOWN}
    return NodeRecord(**known | {"awaits": tuple(known.get("awaits", ()))})  # JSON has no tuples.
