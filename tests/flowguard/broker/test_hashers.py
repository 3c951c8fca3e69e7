"""The choice of the thread that hashes: the idle one if processor time is left, else the nice
one."""

import os
import threading

import pytest

from flowguard.broker.identity import hashers
from flowguard.broker.identity.hashers import LATE_S, LOOK_S, Hashers, SpareTime
from flowguard.errors import UnprovedError
from flowguard.priority import lowered
from tests.support.patience import HANG_S
from tests.support.real import until


class Loop:
    """How long a loop has slept and run, as it would tell."""

    def __init__(self) -> None:
        self.now_s = self.idle_s = self.ran_s = 0.0
        self.spare = SpareTime(lambda: self.now_s, lambda: self.idle_s, lambda: self.ran_s)

    def goes_on(self, idle: float, ran: float, wanted: float = 0.0) -> None:
        """In shares of `LOOK_S`; `wanted`: a processor, and had none."""
        self.now_s += (idle + ran + wanted) * LOOK_S
        self.idle_s += idle * LOOK_S
        self.ran_s += ran * LOOK_S


@pytest.mark.parametrize(
    ("idle", "ran", "wanted", "is_left"),
    [
        (1.0, 0.01, 0.0, True),
        (0.3, 0.75, 0.0, True),
        (0.1, 1.0, 0.0, False),
        (0.0, 1.1, 0.0, False),
        (0.8, 0.2, 0.1, False),
        (0.5, 0.5, 0.1, True),
        (0.3, 0.3, 0.0, False),  # Too short a time: as it was.
        (20.0, 1.0, 0.0, False),  # Too long a time.
    ],
)
def test_what_is_left(idle: float, ran: float, wanted: float, is_left: bool) -> None:
    loop = Loop()
    assert not loop.spare.is_left
    loop.goes_on(idle, ran, wanted)
    assert loop.spare.is_left is is_left


def test_what_is_left_is_forgotten() -> None:
    loop = Loop()
    loop.goes_on(1, 1)
    assert loop.spare.is_left
    loop.goes_on(0, 0.5)
    assert loop.spare.is_left
    loop.goes_on(0, 1)
    assert not loop.spare.is_left


def by_whom() -> tuple[int, int]:
    thread = threading.get_native_id()
    return os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


async def test_the_thread_that_takes_what_is_left_is_asked_where_something_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hashers, "LATE_S", HANG_S)
    loop = Loop()
    with Hashers(loop.spare) as both:
        assert await both.do(by_whom) == (os.SCHED_OTHER, lowered())
        loop.goes_on(1, 1)
        assert (await both.do(by_whom))[0] == os.SCHED_IDLE
        loop.goes_on(0, 1)
        assert await both.do(by_whom) == (os.SCHED_OTHER, lowered())


def refuses() -> None:
    raise UnprovedError("no")


async def test_what_work_raises_is_raised() -> None:
    loop = Loop()
    with Hashers(loop.spare) as both:
        for _ in range(2):
            with pytest.raises(UnprovedError, match="no"):
                await both.do(refuses)
            loop.goes_on(1, 1)


async def test_who_is_late_is_not_waited_for_and_not_asked_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await until(lambda: names() == [])  # Those of another test may be about to end.
    loop, goes_on = Loop(), threading.Event()
    loop.goes_on(1, 1)

    def stuck_there() -> str:
        if by_whom()[0] == os.SCHED_IDLE:
            goes_on.wait(HANG_S)
        return "nice"

    monkeypatch.setattr(hashers, "LATE_S", LATE_S / 100)
    try:
        with Hashers(loop.spare) as both:
            assert await both.do(stuck_there) == "nice"
            loop.goes_on(1, 1)
            assert (await both.do(by_whom))[0] == os.SCHED_OTHER
        assert names() == ["identities-last_0"], "it is left behind"
    finally:
        goes_on.set()
    await until(lambda: names() == [])


def names() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("identities"))


async def test_threads_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashers, "LATE_S", HANG_S)
    await until(lambda: names() == [])
    loop = Loop()
    with Hashers(loop.spare) as both:
        await both.do(by_whom)
        loop.goes_on(1, 1)
        await both.do(by_whom)
        assert len(names()) == 2
    await until(lambda: names() == [])
