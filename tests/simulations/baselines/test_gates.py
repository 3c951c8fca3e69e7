"""Behaviour of each gate without a connect queue; test_policies has the promises of all gates."""

import pytest

from flowguard.flow.load.signals import Pressure, Sample
from flowguard.flow.policy import Arrival, Rung
from flowguard.flow.verdict import Cut, Reason, Verdict
from simulations.baselines.gates import OpenGate, RejectGate, TokenBucketGate
from tests.flowguard.flow.gates import tick

CONNECT = Arrival("", 100)


class Lender:
    """As much of a gate as a limit needs to be borrowed: two places, and a memory."""

    limit = 2

    def __init__(self) -> None:
        self.refused: dict[Reason, int] = {}
        self.cuts: dict[Cut, int] = {}
        self.told: list[tuple[object, ...]] = []

    def offer(self, key: str, arrival: Arrival, now_s: float) -> Verdict:
        self.told.append(("offer", key, now_s))
        return Verdict.ADMIT

    def settle(self, key: str, now_s: float) -> None:
        self.told.append(("settle", key, now_s))

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        self.told.append(("tick", sample.now_s, pressure.value))


def test_an_open_gate_admits_a_hundred_thousand_connects_at_the_same_instant() -> None:
    gate: OpenGate[int] = OpenGate()
    assert {gate.offer(key, CONNECT, 0.0) for key in range(100_000)} == {Verdict.ADMIT}
    assert gate.in_process == 100_000
    assert not gate.refused


def test_an_open_gate_closes_sockets_but_serves_who_is_in() -> None:
    gate: OpenGate[int] = OpenGate()
    gate.climb(Rung.CLOSE)
    assert gate.rung is Rung.CLOSE
    assert gate.may_accept(0.0)  # to close it
    assert gate.offer(1, CONNECT, 0.0) is Verdict.ADMIT


def test_at_the_limit_the_answer_is_137_and_a_place_that_is_free_again_is_given() -> None:
    gate: RejectGate[str] = RejectGate(Lender())
    verdicts = [gate.offer(name, CONNECT, 0.0) for name in "abc"]
    assert verdicts == [Verdict.ADMIT, Verdict.ADMIT, Verdict.REJECT]
    assert gate.refused == {Reason.GATE_LIMIT: 1}
    gate.settle("a", 0.0)
    assert gate.offer("d", CONNECT, 0.0) is Verdict.ADMIT


def test_the_lender_of_a_limit_sees_those_who_are_admitted_and_nobody_else() -> None:
    lender = Lender()
    gate: RejectGate[str] = RejectGate(lender)
    for name in "abc":
        gate.offer(name, CONNECT, 1.0)
    gate.settle("a", 2.0)
    tick(gate, 3.0, 0.5)
    offers = [("offer", "a", 1.0), ("offer", "b", 1.0)]
    assert lender.told == [*offers, ("settle", "a", 2.0), ("tick", 3.0, 0.5)]


def test_a_limit_that_shrank_refuses_until_enough_are_done() -> None:
    lender = Lender()
    gate: RejectGate[str] = RejectGate(lender)
    gate.offer("a", CONNECT, 0.0)
    gate.offer("b", CONNECT, 0.0)
    lender.limit = 1
    gate.settle("a", 0.0)
    assert gate.limit == 1
    assert gate.offer("c", CONNECT, 0.0) is Verdict.REJECT
    gate.settle("b", 0.0)
    assert gate.offer("d", CONNECT, 0.0) is Verdict.ADMIT


def test_a_bucket_lets_its_burst_in_and_then_its_rate() -> None:
    gate: TokenBucketGate[int] = TokenBucketGate()
    crowd = [gate.offer(key, CONNECT, 0.0) for key in range(1_200)]
    assert crowd.count(Verdict.ADMIT) == 1_000
    assert gate.refused == {Reason.GATE_RATE: 200}
    second = [gate.offer(2_000 + key, CONNECT, 1.0) for key in range(600)]
    assert second.count(Verdict.ADMIT) == 500


def test_a_bucket_that_rested_for_an_hour_holds_one_burst() -> None:
    gate: TokenBucketGate[int] = TokenBucketGate(rate=10, burst=20)
    gate.offer(0, CONNECT, 0.0)
    crowd = [gate.offer(1 + key, CONNECT, 3_600.0) for key in range(50)]
    assert crowd.count(Verdict.ADMIT) == 20


def test_a_bucket_does_not_care_how_many_are_in_process() -> None:
    gate: TokenBucketGate[int] = TokenBucketGate(rate=100, burst=100)
    admitted = [gate.offer(key, CONNECT, key / 100) for key in range(1, 1_001)]
    assert set(admitted) == {Verdict.ADMIT}
    assert gate.in_process == 1_000


@pytest.mark.parametrize("gate", [OpenGate(), TokenBucketGate()], ids=["open", "bucket"])
def test_a_connect_is_inside_at_most_once(gate: OpenGate[str] | TokenBucketGate[str]) -> None:
    gate.offer("a", CONNECT, 0.0)
    with pytest.raises(AssertionError):
        gate.offer("a", CONNECT, 0.0)
