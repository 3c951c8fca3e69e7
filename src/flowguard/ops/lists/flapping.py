"""The clients whose connections end again and again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar, final

from typing_extensions import TypedDict

from flowguard.ops.lists.clients import ListedClient
from flowguard.ops.lists.pages import parameters
from flowguard.session.lives import ROW_GAP_S, End, Lives

C = TypeVar("C")
FLAPS_MIN: Final = 3
"""Ends in a row from which a client flaps."""


class FlappingClient(TypedDict):
    client_id: str
    state: str
    """State of its session, or "gone" without one."""
    user: str
    address: str
    """Address of its connection, or of the latest one."""
    ends: int
    """Number of ends in a row, each at most `session.lives.ROW_GAP_S` after the one before."""
    row_s: float
    """Time from the first of them to the latest one."""
    lasted_s: float
    """Time that the latest connection lasted."""
    reason: str
    by: str


@final
class FlappingListing(Generic[C]):
    """The ends that a broker remembers, the most frequent ones first."""

    def __init__(
        self,
        lives: Lives,
        clients: Mapping[str, C],
        row_of: Callable[[C], ListedClient],
        clock: Callable[[], float],
        query: Mapping[str, str],
    ) -> None:
        """Raises ValueError with the reason if a parameter of the query is wrong."""
        parameters(query)
        self._last = lives.last
        self._clients = clients
        self._row_of = row_of
        self._clock = clock

    def entries(self) -> Iterator[list[str]]:
        since_s = self._clock() - ROW_GAP_S
        found = [
            (-end.row_count, name)
            for name, end in self._last.items()
            if end.row_count >= FLAPS_MIN and end.at_s >= since_s
        ]
        yield [name for _, name in sorted(found)]

    def parts(self, entry: str) -> Sequence[tuple[str, End]]:
        end = self._last.get(entry)
        return () if end is None else ((entry, end),)

    def row(self, part: tuple[str, End]) -> FlappingClient:
        client_id, end = part
        client = self._clients.get(client_id)
        row = None if client is None else self._row_of(client)
        return FlappingClient(
            client_id=client_id,
            state="gone" if row is None else row["state"],
            user="" if row is None else row["user"],
            address=(row and row["address"]) or end.address,
            ends=end.row_count,
            row_s=end.at_s - end.row_began_s,
            lasted_s=end.lasted_s,
            reason=end.reason,
            by=end.by,
        )
