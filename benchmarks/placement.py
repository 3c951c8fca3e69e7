"""Client ids by the worker that owns their sessions."""

from collections.abc import Iterator
from itertools import count

from flowguard.app.workers.seat import name_of
from flowguard.cluster.members import owner_among


def owned(letter: str, workers: int, owner: int) -> Iterator[int]:
    """Numbers of the client ids that a worker owns; `letter` begins the ids (clients.h)."""
    names = [name_of(index) for index in range(workers)]
    for number in count():
        if owner_among(names, f"{letter}{number:07}") == names[owner]:
            yield number
