"""The test of the test: the model check finds each of the usual errors in few schedules."""

import importlib

import pytest

from tests.flowguard.cluster.test_links_machine import run_at_random

SCHEDULES_MAX = 400
NAMES = [
    "early answer",
    "early PUBACK",
    "newest first",
    "single rejections",
    "no fencing by incarnation",
    "incarnation not part of the address",
    "incarnation not part of the owed address",
    "commits of an earlier incarnation count",
    "mark not committed",
    "QoS 2 forwarded before the commit",
    "SUBACK does not wait for peers",
    "SUBACK does not wait for suspect peers",
    "unknown filters are none",
]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_mutant_breaks_an_invariant(name: str) -> None:
    # Not imported above: a subclass of a compiled class cannot be made.
    mutants = importlib.import_module("tests.flowguard.cluster.mutants").MUTANTS
    assert list(mutants) == NAMES
    for seed in range(SCHEDULES_MAX):
        try:
            run_at_random(seed, mutants[name])
        except AssertionError:
            return
    pytest.fail(f"no violation in {SCHEDULES_MAX} schedules")
