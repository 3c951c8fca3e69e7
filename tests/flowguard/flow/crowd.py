"""A node in a crowd, without packets: arrivals, service and pressure in virtual time, by seed.

The trace has all decisions of a policy, and they change the events that follow. This module does
not measure how good a policy is: it only gives each policy decisions to make.
"""

import heapq
from hashlib import sha256
from random import Random

from flowguard.flow.load.signals import TICK_S, Sample
from flowguard.flow.policy import Arrival, Policy, Rung
from flowguard.flow.verdict import Verdict

CAPACITY_PER_S = 4_000.0
"""Packets the node can do."""
CLIENTS = 300
"""Number of clients that want to publish without end."""


class Crowd:
    """Drive `policy` tick by tick; `trace` is what it decided."""

    def __init__(self, policy: Policy[int], seed: int) -> None:
        self.policy = policy
        self.trace: list[str] = []
        self._random = Random(seed)
        self._now_s = 0.0
        self._service: list[tuple[float, int]] = []
        self._waiting: list[int] = []
        self._key = 0
        self._window = 1.0
        self._backlog = 0.0

    def run(self, seconds: float) -> str:
        """The hash of all decisions so far."""
        for _ in range(round(seconds / TICK_S)):
            self._connects()
            self._now_s += TICK_S
            self._packets()
        return sha256("\n".join(self.trace).encode()).hexdigest()

    def _connects(self) -> None:
        crowded = self._random.random() < 0.3
        for _ in range(self._random.randint(0, 60 if crowded else 6)):
            self._serve_until(self._now_s + self._random.random() * TICK_S * 0.1)
            if self.policy.gate.rung is Rung.BUFFER and self.policy.gate.may_accept(self._now_s):
                self._arrive()
        if self._waiting and self._random.random() < 0.2:  # a client gives up
            key = self._waiting.pop(self._random.randrange(len(self._waiting)))
            self.policy.gate.settle(key, self._now_s)
        self._serve_until(self._now_s + TICK_S)

    def _arrive(self) -> None:
        gate = self.policy.gate
        self._key += 1
        client_id = self._random.choice(["", f"client-{self._random.randint(0, 40)}"])
        arrival = Arrival(client_id, self._random.randint(20, 400))
        verdict = gate.offer(self._key, arrival, self._now_s)
        self._note("offer", self._key, verdict.value)
        if verdict is Verdict.ADMIT:
            self._begin(self._key)
        elif verdict is Verdict.DELAY:
            self._waiting.append(self._key)
        else:
            hint_s = gate.retry_after_s(self._random.random())
            self._note("hint", hint_s)
            gate.spent(0.0007, self._now_s)

    def _begin(self, key: int) -> None:
        heapq.heappush(self._service, (self._now_s + self._random.uniform(0.01, 1.0), key))

    def _serve_until(self, until_s: float) -> None:
        gate = self.policy.gate
        while self._service and self._service[0][0] <= until_s:
            self._now_s, key = heapq.heappop(self._service)
            gate.settle(key, self._now_s)
            self._turn()
        self._now_s = until_s

    def _turn(self) -> None:
        while (found := self.policy.gate.admit_next(self._now_s)) is not None:
            key, verdict = found
            self._note("next", key, verdict.value)
            self._waiting.remove(key)
            if verdict is Verdict.ADMIT:
                self._begin(key)

    def _packets(self) -> None:
        """Closed windows: all clients keep their windows full, and the node does what it can."""
        in_process = min(CLIENTS * self._window, 20_000.0)
        capacity = CAPACITY_PER_S * TICK_S * self._random.uniform(0.7, 1.3)
        wait_s = in_process / CAPACITY_PER_S
        grant = self.policy.tick(
            Sample(
                self._now_s,
                sojourn_s=wait_s,
                drift_s=self._random.choice([0.0, 0.02, 0.3, 3.0]) * wait_s,
                commit_s=self._random.uniform(0.0, 0.08),
                response_s=wait_s + 0.002,
                completed=round(min(in_process, capacity)),
                in_process=round(in_process),
                clients_active=CLIENTS,
            )
        )
        self._window = grant.window
        self._note("grant", grant.window, grant.credits, grant.why, self.policy.gate.rung)
        self._turn()

    def _note(self, *what: object) -> None:
        self.trace.append(f"{self._now_s!r} " + " ".join(map(repr, what)))
