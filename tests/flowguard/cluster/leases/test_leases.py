"""The model check of shards with leases, on a real Redis, in a few schedules of its many.

`python -m tests.flowguard.cluster.leases.check` runs thousands.
"""

import importlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.flowguard.cluster.leases.model_redis import ModelRedis
from tests.flowguard.cluster.leases.schedules import run_at_random
from tests.support.redis_server import needs_redis

SCHEDULES_MAX = 400
SOON_FOUND = [
    "incarnation from the local clock",
    "no death",
    "answer before the commit",
    "incarnation only counted",
    "moves without limit",
    "no look at the lease without Redis",
    "newest first",
    "lost tail not written again",
]
"""Mutants that few schedules find; the command looks for all of them."""

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def redis() -> Iterator[ModelRedis]:
    needs_redis()
    server = ModelRedis()
    yield server
    server.close()


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 10**9))
def test_invariants_hold_while_shards_change_owners(redis: ModelRedis, seed: int) -> None:
    parts = importlib.import_module("tests.flowguard.cluster.leases.lease_mutants").PARTS
    run_at_random(redis, seed, parts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOON_FOUND)
def test_a_mutant_breaks_an_invariant(redis: ModelRedis, name: str) -> None:
    # Not imported above: a subclass of a compiled class cannot be made.
    mutants = importlib.import_module("tests.flowguard.cluster.leases.lease_mutants").MUTANTS
    for seed in range(SCHEDULES_MAX):
        try:
            run_at_random(redis, seed, mutants[name])
        except AssertionError:
            return
    pytest.fail(f"no violation in {SCHEDULES_MAX} schedules")
