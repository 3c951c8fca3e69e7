"""`python -m tests.flowguard.cluster.leases.check [--schedules 2000] [--first 0] [--mutants 0]`.

Runs the model check of shards with leases, with real functions in a Redis of its own, and counts
what the schedules did. With `--mutants N` it also looks for each mutant in up to N schedules. Exit
code 1: the check found an error, or did not find a mutant.
"""

import argparse
import logging
import sys

import structlog

from tests.flowguard.cluster.leases.lease_mutants import MUTANTS, PARTS
from tests.flowguard.cluster.leases.lease_world import COUNTS
from tests.flowguard.cluster.leases.machines import LeaseParts
from tests.flowguard.cluster.leases.model_redis import ModelRedis
from tests.flowguard.cluster.leases.schedules import run_at_random
from tests.support.reaper import reap_at_the_end

SHOWN_MAX = 10


def error_of(redis: ModelRedis, seed: int, parts: LeaseParts) -> str:
    """Return the error that a schedule finds, or ""."""
    try:
        run_at_random(redis, seed, parts)
    except AssertionError as error:
        return str(error)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--mutants", type=int, default=0, help="schedules for each mutant")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    reap_at_the_end()
    redis = ModelRedis()
    try:
        return _run(redis, options.first, options.schedules, options.mutants)
    finally:
        redis.close()


def _run(redis: ModelRedis, first: int, schedules: int, mutants: int) -> int:
    errors = 0
    for seed in range(first, first + schedules):
        if error := error_of(redis, seed, PARTS):
            errors += 1
            if errors <= SHOWN_MAX:
                print(f"    seed {seed}: {error}", flush=True)
    print(f"{schedules} schedules, {errors} with an error")
    for name, count in COUNTS.most_common():
        print(f"{count:>10,} {name}")
    lacking = 0
    for name, parts in MUTANTS.items() if mutants else ():
        found = (seed for seed in range(first, first + mutants) if error_of(redis, seed, parts))
        first_found = next(found, None)
        lacking += first_found is None
        how = "not found" if first_found is None else f"found by schedule {first_found}"
        print(f"mutant, {name}: {how}", flush=True)
    return 1 if errors or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
