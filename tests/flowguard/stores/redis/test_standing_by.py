"""Who stands by for another broker says so, once, and whom it has taken over from."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from flowguard.errors import LockedError
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.lease import Lease
from flowguard.stores.redis.link import RedisLink


class Answers:
    """A server that gives these answers to those who want a lease."""

    where = "redis://here"

    def __init__(self, *answers: tuple[int, bytes, int]) -> None:
        self._answers = list(answers)

    def call(self, *_: object) -> list[tuple[int, bytes, int]]:
        return [self._answers.pop(0)]


FREE = (1, b"", 0)


def lease_on(*answers: tuple[int, bytes, int]) -> Lease:
    return Lease(cast(RedisLink, Answers(*answers)), KeyNames("fg1"), "token", "us", 3.0)


def claim(*answers: tuple[int, bytes, int], takeover: bool = True) -> tuple[list[Any], list[str]]:
    """Lines of the log, and what was told meanwhile."""
    told: list[str] = []
    lease = lease_on(*answers)
    with capture_logs() as lines:
        lease.claim(lambda _: None, lambda: "runs", takeover=takeover, on_wait=told.append)
    return lines, told


def test_it_says_for_whom_it_stands_by_and_when_it_takes_over() -> None:
    first = (0, b"host-a, process 7", 2_900)
    lines, told = claim(first, first, first, FREE, FREE)
    waits, begins = lines
    assert waits["event"] == "stands by, and begins when the other broker ends"
    assert waits["other"] == begins["of"] == "host-a, process 7"
    assert waits["server"] == "redis://here"
    assert waits["prefix"] == begins["prefix"]
    assert begins["event"] == "takes over"
    assert len(told) == 3
    assert told[0].startswith("host-a, process 7 has ")


def test_whoever_was_faster_is_named_in_turn() -> None:
    lines, _ = claim((0, b"a", 1), FREE, (0, b"b", 1), FREE, FREE)
    assert [line.get("other", line.get("of")) for line in lines] == ["a", "b", "b"]


def test_who_has_not_waited_says_nothing() -> None:
    assert claim(FREE, FREE) == ([], [])


def test_who_is_not_to_take_over_waits_for_a_dead_ones_lease_without_a_word() -> None:
    assert claim((0, b"a", 900), FREE, FREE, takeover=False) == ([], [])
    with pytest.raises(LockedError):
        claim((0, b"a", 900), (0, b"a", 2_900), takeover=False)
