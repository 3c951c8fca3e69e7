"""Errors that the model check of shards must find: the test of the test."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from flowguard.cluster.shards import NodeRecord, SignsOfLife, assigned, next_move
from tests.flowguard.cluster.leases.machines import Judge, LeaseParts, Machine, Process
from tests.flowguard.cluster.leases.shard_node import ShardNode
from tests.flowguard.cluster.mutants import NewestFirst
from tests.flowguard.cluster.node import Parts, Then

if TYPE_CHECKING:
    from flowguard.stores.redis import RedisStore

PARTS = LeaseParts(Parts(ShardNode), Process)
WHOLE = ("if whole[1] ~= token then return {-1, 1, 0} end", "")
OF_SESSION = ("if token_of(state) ~= token then return 1, 0 end", "")


class EarlyAnswers(Process):
    """Answers before the commit."""

    def commit(self, store: "RedisStore", node: ShardNode) -> None:
        begin = node.begin_commit

        def early() -> tuple[list[object], list[object], list[Then]]:
            ops, entries, thens = begin()
            self.answer(thens)
            return ops, entries, []  # type: ignore[return-value]

        node.begin_commit = early  # type: ignore[method-assign,assignment]
        try:
            super().commit(store, node)
        finally:
            del node.begin_commit


class DeadByLink(Judge):
    """Takes a node that has no link with this one for dead."""

    def __init__(self, machine: Machine, lease_s: float, now_s: float) -> None:
        self._machine = machine
        self._signs = SignsOfLife(lease_s, now_s)

    def met(self, now_s: float) -> None:
        self._signs.met(now_s)

    def living(self, ages_s: Mapping[str, float]) -> set[str]:
        cut = {name for pair in self._machine.world.split for name in pair}
        if self._machine.name in cut:
            cut.discard(self._machine.name)
            return self._signs.living(ages_s) - cut
        return self._signs.living(ages_s)


class Hasty(Judge):
    """Judges other nodes although it has lacked Redis itself."""

    def __init__(self, machine: Machine, lease_s: float, now_s: float) -> None:
        self._lease_s = lease_s

    def met(self, now_s: float) -> None: ...

    def living(self, ages_s: Mapping[str, float]) -> set[str]:
        return {name for name, age_s in ages_s.items() if age_s <= self._lease_s}


class Trusting(Judge):
    """Takes no node for dead."""

    def __init__(self, machine: Machine, lease_s: float, now_s: float) -> None: ...

    def met(self, now_s: float) -> None: ...

    def living(self, ages_s: Mapping[str, float]) -> set[str]:
        return set(ages_s)


def all_at_once(
    living: Iterable[NodeRecord], homes: Mapping[int, str], count: int
) -> dict[int, str]:
    """Moves shards without a limit until the nodes have equal parts."""
    nodes = list(living)
    found = assigned(nodes, homes, count)
    while (move := next_move(nodes, found, count)) is not None:
        found[move.shard] = move.taker
    return found


def _nodes(**parts: object) -> LeaseParts:
    return replace(PARTS, links=replace(PARTS.links, **parts))  # type: ignore[arg-type]


MUTANTS: dict[str, LeaseParts] = {
    "no fencing": replace(PARTS, text=(WHOLE, OF_SESSION)),
    "lease not checked in commits": replace(PARTS, text=(WHOLE,)),
    "incarnation only counted": replace(PARTS, text=(("math.max(before + 1, now)", "before + 1"),)),
    "incarnation from the local clock": replace(
        PARTS, text=(("math.max(before + 1, now)", "now - 100000 * string.byte(name)"),)
    ),
    "death by link alone": replace(PARTS, judge=DeadByLink),
    "no death": replace(PARTS, judge=Trusting),
    "judges while Redis is away": replace(PARTS, judge=Hasty),
    "moves without limit": replace(PARTS, decide=all_at_once),
    "answer before the commit": replace(PARTS, process=EarlyAnswers),
    "no look at the lease without Redis": replace(PARTS, doubts=False),
    "newest first": _nodes(outgoing=NewestFirst),
    "lost tail not written again": replace(PARTS, rewrites=False),
}
