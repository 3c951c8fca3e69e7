"""`python -m tests.flowguard.cluster.check [--schedules 2000] [--first 0] [--hypothesis 2000]`.

Runs the model check of links with independent random schedules, then with schedules of Hypothesis,
and counts what they did. With `--mutants N` it also looks for each mutant in N schedules. Exit code
1: the check found an error in the core, or did not find a mutant.
"""

import argparse
import sys

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.flowguard.cluster.mutants import MUTANTS
from tests.flowguard.cluster.node import Node, Parts
from tests.flowguard.cluster.test_links_machine import LinksMachine, run_at_random
from tests.flowguard.cluster.world import COUNTS


def finds(parts: Parts, first: int, schedules: int) -> list[tuple[int, str]]:
    """Return the seeds of schedules with an error, and the errors."""
    found = []
    for number in range(first, first + schedules):
        try:
            run_at_random(number, parts)
        except Exception as error:
            found.append((number, f"{type(error).__name__}: {error}"))
    return found


def run_hypothesis(schedules: int, number: int) -> None:
    how = settings(
        max_examples=schedules,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(lambda: LinksMachine()), settings=how)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--hypothesis", type=int, default=0, help="schedules of Hypothesis")
    parser.add_argument("--mutants", type=int, default=0, help="schedules for each mutant")
    options = parser.parse_args()
    found = finds(Parts(Node), options.first, options.schedules)
    print(f"{options.schedules} schedules, {len(found)} with an error")
    for number, error in found[:10]:
        print(f"    seed {number}: {error}")
    for name, count in COUNTS.most_common():
        print(f"{count:>10,} {name}")
    is_good = not found
    for name, parts in MUTANTS.items() if options.mutants else ():
        found = finds(parts, options.first, options.mutants)
        print(f"mutant, {name}: {len(found)} of {options.mutants}; {found[:1]}")
        is_good = is_good and bool(found)
    if options.hypothesis:
        run_hypothesis(options.hypothesis, options.first)
        print(f"{options.hypothesis} schedules of Hypothesis without an error")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
