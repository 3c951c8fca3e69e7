"""The rules of `proxying`, in few steps that shrink and in long walks."""

from collections.abc import Callable
from random import Random

import pytest

from flowguard.types import MQTT_5, MQTT_311
from tests.broker_adapter.proxying import CHUNK, Proxying

TestProxying = Proxying.TestCase


@pytest.mark.parametrize("seed", range(40))
def test_long_walks(seed: int) -> None:
    """The same rules, three hundred at a time, most of them on clients that are let in."""
    rng = Random(seed)
    machine = Proxying()
    machine.begin(
        window_max=rng.choice([1, 3, 100]),
        unfinished_max=rng.choice([2, 4_096]),
        connects=rng.choice([1, 50]),
        buffered=rng.choice([0, 50]),
        floor=rng.choice([0.1, 1.0]),
        upstreams=rng.choice([1, 3]),
        identifiers=rng.choice([2, 65_535]),
    )

    def pick() -> int:
        return rng.randrange(1_000)

    def many() -> None:
        qos = [rng.randrange(3) for _ in range(rng.randrange(2, 9))]
        machine.it_publishes_many_at_once(pick(), qos, rng.random() < 0.5)

    version = (MQTT_311, MQTT_5)
    steps: list[tuple[float, Callable[[], object]]] = [
        (4, lambda: machine.a_client_is_let_in(rng.choice(version))),
        (2, lambda: machine.a_client_connects(rng.choice(version), rng.choice(["", "a", "b"]))),
        (3, lambda: machine.it_answers_a_connect(pick(), rng.choice([0, 0, 0, 0x89]))),
        (12, many),
        (
            6,
            lambda: machine.it_publishes_one(
                pick(), rng.randrange(3), rng.choice([0, 700, 70_000])
            ),
        ),
        (3, lambda: machine.it_subscribes_or_not(pick(), rng.random() < 0.5)),
        (3, lambda: machine.it_pings_or_acknowledges(pick(), rng.random() < 0.5)),
        (30, lambda: machine.its_bytes_arrive(pick(), rng.choice([1, 30, CHUNK]), 8)),
        (25, lambda: machine.it_acknowledges(pick(), rng.randrange(1, 6), rng.randrange(1, 9))),
        (3, lambda: machine.it_says_something_else(pick(), rng.choice([0, 5_000]))),
        (1, lambda: machine.it_hangs_up(pick(), rng.random() < 0.5)),
        (1, lambda: machine.it_hears_an_end_and_ends(pick())),
        (2, machine.it_takes_nothing_for_a_while),
        (1, machine.clients_read_nothing_for_a_while),
        (2, lambda: machine.one_more_says_until_its_client_has_enough(pick())),
        (5, machine.everybody_takes_again),
        (3, machine.a_slice_begins),
        (6, machine.a_slice_ends),
        (0.3, machine.it_falls),
        (0.5, lambda: machine.one_of_several_falls(pick())),
        (2, machine.all_are_back),
        (6, lambda: machine.time_passes(rng.choice([0.1, 0.1, 0.5]))),
    ]
    weights = [weight for weight, _ in steps]
    for _, step in rng.choices(steps, weights, k=300):
        step()
        machine.the_upstream_gets_what_was_sent_in_order()
        machine.what_the_upstream_has_of_qos_0_is_done()
        machine.the_client_gets_what_the_upstream_said()
        machine.bounds_are_kept()
        machine.who_waits_waits_for_something()
    machine.teardown()
