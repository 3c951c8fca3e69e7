"""MetIncarnations: the highest incarnation of each shard that a node has met, without IO.

A fail-over of Redis may lose the last one. Peers reject all that are lower than one that they know.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, final

from flowguard.cluster.shards import NodeRecord


class _Home(Protocol):
    @property
    def incarnation(self) -> int: ...


@final
class MetIncarnations:
    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def meet(self, homes: Mapping[int, _Home], nodes: Iterable[NodeRecord]) -> None:
        """Note the incarnations that the table has, and those that nodes know besides."""
        for shard, home in homes.items():
            self.latest(shard, home.incarnation)
        for node in nodes:
            for name, incarnation in node.later.items():
                self.latest(int(name), incarnation)

    def latest(self, shard: int, incarnation: int) -> int:
        """Note an incarnation of a shard, and return the highest one."""
        highest = self._highest[shard] = max(self._highest.get(shard, 0), incarnation)
        return highest

    def beyond(self, homes: Mapping[int, _Home]) -> dict[str, int]:
        """Return the incarnations that the table lacks, by shard."""
        return {
            str(shard): highest
            for shard, highest in self._highest.items()
            if highest > (homes[shard].incarnation if shard in homes else 0)
        }
