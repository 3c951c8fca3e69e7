"""Network: who reaches whom. Between nodes a link may be cut; clients reach every node that lives.

Nothing is lost on a link that is up, and nothing overtakes: latencies are constant.
"""

from typing import final


@final
class Network:
    """Links between nodes, by their indices."""

    __slots__ = ("_cuts",)

    def __init__(self) -> None:
        self._cuts: dict[frozenset[int], int] = {}
        """How many faults cut a link."""

    def is_up(self, one: int, other: int) -> bool:
        """Whether the two hear each other."""
        return frozenset((one, other)) not in self._cuts

    def cut(self, one: int, other: int) -> None:
        """From now on they do not."""
        link = frozenset((one, other))
        self._cuts[link] = self._cuts.get(link, 0) + 1

    def heal(self, one: int, other: int) -> None:
        """One cut less."""
        link = frozenset((one, other))
        self._cuts[link] -= 1
        if not self._cuts[link]:
            del self._cuts[link]
