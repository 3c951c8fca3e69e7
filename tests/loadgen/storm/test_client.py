"""One client of a storm, with a loop whose time is a number."""

from collections.abc import Callable
from random import Random
from typing import Any

from flowguard.codec import Connack
from loadgen.storm import CrowdPlan, RetryMode, RetryPolicy
from loadgen.storm.client import Client, Stage
from loadgen.storm.loop import Fate
from loadgen.storm.tally import ConnectTally

TIMEOUT_S = 10.0


class OneClient:
    """A crowd of one, and its own loop; nothing is sent."""

    def __init__(self) -> None:
        retry = RetryPolicy(RetryMode.FIXED, first_s=1.0)
        self.plan = CrowdPlan(1, retry, timeout_s=TIMEOUT_S, returns=True)
        self.rng = Random(1)
        self.tally = ConnectTally(1, trying=1)
        self.loop: Any = self
        self.due: list[tuple[float, Callable[[float], None]]] = []
        self.client = Client(self, "c")

    def call_at(self, at_s: float, callback: Callable[[float], None]) -> None:
        self.due.append((at_s, callback))

    def dial(self, owner: object, now_s: float) -> Any:
        return Socket()

    def run_until(self, now_s: float) -> None:
        due = [each for each in self.due if each[0] <= now_s]
        self.due = [each for each in self.due if each[0] > now_s]
        for at_s, callback in due:
            callback(at_s)


class Socket:
    def close(self) -> None:
        """There is none."""


def test_time_of_a_connection_does_not_end_the_attempt_after_it() -> None:
    crowd = OneClient()
    client = crowd.client
    client.attempt(0.0)
    client.receive(Connack(False, 0), 0.1)
    client.closed(Fate.RESET, 8.0)
    crowd.run_until(9.0)
    assert client.stage is Stage.TRYING
    crowd.run_until(TIMEOUT_S)  # The time of the first attempt.
    assert client.stage is Stage.TRYING
    assert crowd.tally.timeouts == 0
    crowd.run_until(9.0 + TIMEOUT_S)
    assert crowd.tally.timeouts == 1
