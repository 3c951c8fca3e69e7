"""Placing pairs on workers by the numbers in their client ids."""

import pytest

from benchmarks.cluster import OTHER, SAME, Place, numbers_of
from flowguard.cluster.members import owner_among

PAIRS = 20


def owners_of(place: Place) -> list[tuple[str, str]]:
    """The owners of the subscriber and of the publisher of each pair."""
    numbers = numbers_of(PAIRS, place)
    names = [f"worker-{index}" for index in range(place.workers)]
    subscribers = [owner_among(names, f"s{number:07}") for number in numbers[:PAIRS]]
    publishers = [owner_among(names, f"p{number:07}") for number in numbers[PAIRS:]]
    return list(zip(subscribers, publishers, strict=True))


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("where", [SAME, OTHER])
def test_pairs_are_placed_on_all_workers_alike(workers: int, where: str) -> None:
    owners = owners_of(Place(workers, where))
    for index in range(workers):
        assert sum(s == f"worker-{index}" for s, _ in owners) == PAIRS // workers
    assert all((s == p) == (where == SAME) for s, p in owners)


@pytest.mark.parametrize("where", [SAME, OTHER])
def test_no_two_clients_of_a_role_have_one_id(where: str) -> None:
    numbers = numbers_of(PAIRS, Place(2, where))
    assert len(set(numbers[:PAIRS])) == len(set(numbers[PAIRS:])) == PAIRS
