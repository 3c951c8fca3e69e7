"""A flash crowd at the gate, in virtual time: a buffer without a bound on the wait is a trap.

One node of three at 1:10 scale: 6,667 clients arrive within a second, the node serves 66.7 CONNECTs
per second, so that 100 s are ideal. A client gives up after 10 s and tries again. Accepting costs
0.05 of a CONNECT (with TLS 0.20), refusing 0.02 more. The figures rank designs, and mean nothing
for a real broker.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from flowguard.config import FlowSettings
from flowguard.flow import ConnectGate, Verdict
from flowguard.flow.load.signals import CALM, Pressure, Sample
from flowguard.flow.policy import Arrival

CLIENTS = 6_667
CONNECT_S = 0.015
REFUSE_S = 0.02 * CONNECT_S
IDEAL_S = CLIENTS * CONNECT_S
TIMEOUT_S = 10.0
SYN_AGAIN_S = (0.0, 1.0, 3.0, 7.0)
"""Times at which a client's kernel sends its SYN, until the backlog takes it, seconds."""
TURN_S = 0.02
TICK_S = 0.1

Pause = Callable[[int, random.Random], float]


def backing_off(attempts: int, rng: random.Random) -> float:
    return min(60.0, 2.0 ** (attempts - 1)) * (0.5 + 0.5 * rng.random())


def every_2_s(attempts: int, rng: random.Random) -> float:
    return 2.0


class Attempt:
    """One socket of one client."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.alive = True
        self.queued = False


class Door(Protocol):
    """The part of a gate that the crowd needs."""

    def offer(self, key: Attempt, arrival: Arrival, now_s: float) -> Verdict: ...
    def settle(self, key: Attempt, now_s: float) -> None: ...
    def admit_next(self, now_s: float) -> tuple[Attempt, Verdict] | None: ...
    def tick(self, sample: Sample, pressure: Pressure) -> None: ...
    def may_accept(self, now_s: float) -> bool: ...
    def spent(self, cost_s: float, now_s: float) -> None: ...
    def retry_after_s(self, draw: float) -> float: ...


class CappedBuffer:
    """The control: 16 places and a buffer of 1,000, first in first out; the dead are served."""

    def __init__(self) -> None:
        self.in_process: set[Attempt] = set()
        self.buffer: deque[Attempt] = deque()

    def offer(self, key: Attempt, arrival: Arrival, now_s: float) -> Verdict:
        if len(self.buffer) >= 1_000:
            return Verdict.REJECT
        self.buffer.append(key)
        return Verdict.DELAY

    def settle(self, key: Attempt, now_s: float) -> None:
        self.in_process.discard(key)

    def admit_next(self, now_s: float) -> tuple[Attempt, Verdict] | None:
        if not self.buffer or len(self.in_process) >= 16:
            return None
        self.in_process.add(self.buffer[0])
        return self.buffer.popleft(), Verdict.ADMIT

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        pass

    def may_accept(self, now_s: float) -> bool:
        return True

    def spent(self, cost_s: float, now_s: float) -> None:
        pass

    def retry_after_s(self, draw: float) -> float:
        raise NotImplementedError


class Crowd:
    """The clients, the kernel's listen backlog, and a node that does one thing at a time."""

    def __init__(
        self,
        door: Door,
        pause: Pause,
        *,
        backlog_max: int = 128,
        obedient: float = 0.0,
        accept_share: float = 0.05,
        sees_the_dead: bool = True,
        seed: int = 1,
    ) -> None:
        self.door = door
        self.pause = pause
        self.backlog_max = backlog_max
        self.obedient = obedient
        self.accept_s = accept_share * CONNECT_S
        self.sees_the_dead = sees_the_dead
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.ticked_s = 0.0
        self.attempts = [0] * CLIENTS
        self.connected_s: list[float] = []
        self.backlog: deque[Attempt] = deque()
        self.serving: deque[Attempt] = deque()
        self.serial = 0
        self.events: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        for client in range(CLIENTS):
            self.at(self.rng.random(), self.start, client)

    def run(self, limit_s: float) -> None:
        while self.now_s < limit_s and len(self.connected_s) < CLIENTS:
            self.turn()

    def finished_s(self, share: float = 0.99) -> float:
        """When that share of the clients was connected."""
        return self.connected_s[int(share * CLIENTS) - 1]

    # --- the clients ---

    def at(self, when_s: float, what: Callable[[Any, float], None], whom: Any) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when_s, self.serial, what, whom))

    def start(self, client: int, when_s: float) -> None:
        self.attempts[client] += 1
        attempt = Attempt(client)
        self.at(when_s + TIMEOUT_S, self.give_up, attempt)
        for again_s in SYN_AGAIN_S:
            self.at(when_s + again_s, self.knock, attempt)

    def knock(self, attempt: Attempt, when_s: float) -> None:
        if attempt.alive and not attempt.queued and len(self.backlog) < self.backlog_max:
            attempt.queued = True
            self.backlog.append(attempt)

    def give_up(self, attempt: Attempt, when_s: float) -> None:
        if attempt.alive:
            if self.sees_the_dead:
                self.door.settle(attempt, self.now_s)
            self.come_back(attempt, when_s)

    def come_back(self, attempt: Attempt, when_s: float, pause_s: float | None = None) -> None:
        attempt.alive = False
        if pause_s is None:
            pause_s = self.pause(self.attempts[attempt.client], self.rng)
        self.at(when_s + pause_s, self.start, attempt.client)

    # --- the node ---

    def turn(self) -> None:
        end_s = self.now_s + TURN_S
        while self.events and self.events[0][0] <= self.now_s:
            when_s, _, what, whom = heapq.heappop(self.events)
            what(whom, when_s)
        if self.now_s - self.ticked_s >= TICK_S:
            self.ticked_s = self.now_s
            self.door.tick(Sample(self.now_s), CALM)
        while self.backlog and self.now_s < end_s and self.door.may_accept(self.now_s):
            self.accept(self.backlog.popleft())
        while (waiting := self.door.admit_next(self.now_s)) is not None:
            self.judge(*waiting)
        while self.serving and self.now_s < end_s:
            self.serve(self.serving.popleft())
        self.now_s = max(self.now_s, end_s)

    def accept(self, attempt: Attempt) -> None:
        self.work(self.accept_s)
        if attempt.alive or not self.sees_the_dead:
            self.judge(attempt, self.door.offer(attempt, Arrival("", 100), self.now_s))

    def judge(self, attempt: Attempt, verdict: Verdict) -> None:
        if verdict is Verdict.ADMIT:
            self.serving.append(attempt)
        elif verdict is Verdict.REJECT:
            self.work(REFUSE_S)
            if attempt.alive:
                obeys = self.rng.random() < self.obedient
                pause_s = self.door.retry_after_s(self.rng.random()) if obeys else None
                self.come_back(attempt, self.now_s, pause_s)

    def work(self, cost_s: float) -> None:
        self.now_s += cost_s
        self.door.spent(cost_s, self.now_s)

    def serve(self, attempt: Attempt) -> None:
        if self.sees_the_dead and not attempt.alive:
            return
        self.now_s += CONNECT_S - self.accept_s
        self.door.settle(attempt, self.now_s)
        if attempt.alive:
            attempt.alive = False
            self.connected_s.append(self.now_s)


@pytest.fixture
def gate() -> ConnectGate[Attempt]:
    return ConnectGate(FlowSettings())


@pytest.mark.slow
@pytest.mark.parametrize(("pause", "accept_share"), [(backing_off, 0.05), (every_2_s, 0.20)])
def test_a_crowd_is_served_in_little_more_than_the_ideal_time(
    gate: ConnectGate[Attempt], pause: Pause, accept_share: float
) -> None:
    crowd = Crowd(gate, pause, accept_share=accept_share)
    crowd.run(2.0 * IDEAL_S)
    assert len(crowd.connected_s) >= 0.99 * CLIENTS
    assert crowd.finished_s() <= 1.5 * IDEAL_S
    assert sum(crowd.attempts) <= 10 * CLIENTS
    assert gate.in_process == len(crowd.serving)


@pytest.mark.slow
@pytest.mark.parametrize("pause", [backing_off, every_2_s])
def test_a_capped_buffer_that_serves_the_dead_never_gets_through(pause: Pause) -> None:
    """The control: without deadline and dead check the same crowd does not come in."""
    crowd = Crowd(CappedBuffer(), pause, backlog_max=4_096, sees_the_dead=False)
    crowd.run(1.5 * IDEAL_S)
    assert len(crowd.connected_s) <= 0.15 * CLIENTS


@pytest.mark.slow
def test_without_a_budget_for_refusing_a_storm_of_retries_is_all_the_node_does() -> None:
    """The control of the budget: all else equal, refusals may take the whole loop."""
    gate: ConnectGate[Attempt] = ConnectGate(FlowSettings(refusal_share=1.0))
    crowd = Crowd(gate, every_2_s, accept_share=0.20)
    crowd.run(1.5 * IDEAL_S)
    assert len(crowd.connected_s) <= 0.15 * CLIENTS


@pytest.mark.slow
def test_clients_that_obey_the_hint_are_in_sooner_with_fewer_attempts() -> None:
    crowds = []
    for obedient in (0.0, 0.5, 1.0):
        crowd = Crowd(ConnectGate(FlowSettings()), backing_off, obedient=obedient)
        crowd.run(2.0 * IDEAL_S)
        crowds.append(crowd)
    deaf, half, obeying = crowds
    assert obeying.finished_s() < half.finished_s() < deaf.finished_s()
    assert obeying.finished_s() <= 1.15 * IDEAL_S
    assert sum(obeying.attempts) < sum(half.attempts) < sum(deaf.attempts)


def test_crowd_that_only_waits_for_commits_comes_in_as_fast_as_they_allow() -> None:
    """Each CONNECT takes 30 ms, however many are in process; the objective is 250 ms."""
    gate: ConnectGate[Attempt] = ConnectGate(FlowSettings())
    commit_s, now_s, ticked_s = 0.03, 0.0, 0.0
    in_process: deque[tuple[float, Attempt]] = deque()
    connected_s: list[float] = []
    for client in range(CLIENTS // 2):
        attempt = Attempt(client)
        if gate.offer(attempt, Arrival("", 100), now_s) is Verdict.ADMIT:
            in_process.append((now_s + commit_s, attempt))
    while len(connected_s) < CLIENTS // 2 and now_s < TIMEOUT_S:
        while in_process and in_process[0][0] <= now_s:
            gate.settle(in_process.popleft()[1], now_s)
            connected_s.append(now_s)
        while (waiting := gate.admit_next(now_s)) is not None:
            in_process.append((now_s + commit_s, waiting[0]))
        if now_s - ticked_s >= TICK_S:
            ticked_s = now_s
            gate.tick(Sample(now_s), CALM)
        now_s += 0.005
    assert len(connected_s) == CLIENTS // 2
    assert connected_s[-1] < 1.0
