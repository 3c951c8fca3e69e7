"""Network: which nodes reach each other. A link between nodes may be cut; clients reach every
living node.

Nothing is lost on a link that is up, and nothing overtakes: latencies are constant."""

from typing import final


@final
class Network:
    """Links between nodes, by their indices."""

    __slots__ = ("_cuts",)

    def __init__(self) -> None:
        self._cuts: dict[frozenset[int], int] = {}
        """The number of faults that cut a link."""

    def is_up(self, one: int, other: int) -> bool:
        """Whether two nodes reach each other."""
        return frozenset((one, other)) not in self._cuts

    def cut(self, one: int, other: int) -> None:
        """Add a cut of the link."""
        link = frozenset((one, other))
        self._cuts[link] = self._cuts.get(link, 0) + 1

    def heal(self, one: int, other: int) -> None:
        """Remove one cut of the link."""
        link = frozenset((one, other))
        self._cuts[link] -= 1
        if not self._cuts[link]:
            del self._cuts[link]
