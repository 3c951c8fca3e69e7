"""A standby broker logs that it waits, once, and the broker that it has taken over from."""

from math import ceil
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from flowguard.errors import LockedError, StallError
from flowguard.stores.redis.connection.link import RedisLink
from flowguard.stores.redis.keys import KeyNames
from flowguard.stores.redis.lease import LOOK_S, Lease

Answer = tuple[int, bytes, int] | StallError


class Answers:
    """A server with these answers to requests for a lease."""

    where = "redis://here"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def call(self, *_: object) -> list[tuple[int, bytes, int, int]]:
        answer = self.answers.pop(0)
        if isinstance(answer, StallError):
            raise answer
        return [(*answer, EPOCH)]


EPOCH = 7
FREE = (1, b"", 0)
AWAY = StallError("redis://here: Connection refused")
LEASE_S = 2.95
LOOKS = ceil(LEASE_S / LOOK_S)


def lease_on(server: Answers) -> Lease:
    return Lease(cast(RedisLink, server), KeyNames("fg1"), "token", "us", LEASE_S)


def claim(*answers: Answer, takeover: bool = True) -> tuple[list[Any], list[str]]:
    """Return the lines of the log, and the reports meanwhile."""
    told: list[str] = []
    server = Answers(*answers)
    lease = lease_on(server)
    with capture_logs() as lines:
        lease.claim(
            lambda _: None,
            lambda: "runs",
            takeover=takeover,
            on_wait=lambda who, _: told.append(who),
        )
    assert not server.answers
    assert lease.epoch == EPOCH
    return lines, told


def test_it_says_for_whom_it_stands_by_and_when_it_takes_over() -> None:
    first = (0, b"host-a, process 7", 2_900)
    lines, told = claim(first, first, first, FREE, FREE)
    waits, begins = lines
    assert waits["event"] == "standby: starts when the other broker ends"
    assert waits["other"] == begins["of"] == "host-a, process 7"
    assert waits["server"] == "redis://here"
    assert waits["prefix"] == begins["prefix"]
    assert begins["event"] == "standby: takes over the store"
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


def test_who_stands_by_outlives_a_redis_that_is_away_and_says_so_once() -> None:
    first = (0, b"a", 2_900)
    lines, told = claim(first, AWAY, AWAY, *[first] * LOOKS, FREE, FREE)
    assert [line["event"] for line in lines] == [
        "standby: starts when the other broker ends",
        "standby: cannot read the lease from redis",
        "standby: redis available again",
        "standby: takes over the store",
    ]
    assert told[1] == told[2] == str(AWAY)


def test_whose_lease_ended_while_redis_was_away_has_a_leases_time_to_renew_it() -> None:
    first = (0, b"a", 2_900)
    lines, _ = claim(first, AWAY, *[FREE] * LOOKS, FREE, FREE)
    assert lines[-1]["event"] == "standby: takes over the store"


def test_who_has_seen_nobody_to_stand_by_for_does_not_wait_for_redis() -> None:
    for takeover in (True, False):
        with pytest.raises(StallError):
            claim(AWAY, takeover=takeover)
