"""Vegas and Gradient2: the rules of the library, and the drift they are known for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.load.signals import Sample
from simulations.baselines.gates import OpenGate
from simulations.baselines.learned import (
    GRADIENT_LIMIT_MAX,
    GRADIENT_LIMIT_MIN,
    LIMIT_START,
    VEGAS_LIMIT_MAX,
    Gradient2,
    Learned,
    Limit,
    Vegas,
)
from simulations.baselines.static import Baseline
from tests.simulations.baselines.samples import judge, ticks

BUSY = 10_000


def learned(limit: Limit) -> Baseline[str]:
    gate: OpenGate[str] = OpenGate()
    return Baseline("learned", gate, judge, Learned(limit, 100))


class Told:
    """A limit that only listens."""

    value = 50.0

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []

    def learn(self, response_s: float, in_process: int) -> None:
        self.samples.append((response_s, in_process))


def test_vegas_learns_the_least_first_and_then_grows_by_beta_while_there_is_no_queue() -> None:
    limit = Vegas()
    limit.learn(0.010, BUSY)
    assert limit.value == LIMIT_START
    limit.learn(0.010, BUSY)
    assert limit.value == LIMIT_START + 6
    limit.learn(0.010, BUSY)
    assert limit.value == LIMIT_START + 12


@pytest.mark.parametrize(
    ("response_s", "change"),
    # Of L = 20 there wait 0, 2, 4 and 10 packets: log10 of 20 is a step of 1, alpha 3, beta 6.
    [(0.0100, +6), (0.0111, +1), (0.0125, 0), (0.0200, -1)],
)
def test_vegas_moves_by_the_length_of_the_queue(response_s: float, change: int) -> None:
    limit = Vegas()
    limit.learn(0.010, BUSY)
    limit.learn(response_s, BUSY)
    assert limit.value == LIMIT_START + change


@pytest.mark.parametrize("limit", [Vegas(), Gradient2()])
def test_who_uses_less_than_half_of_the_limit_does_not_move_it(limit: Limit) -> None:
    for _ in range(200):
        limit.learn(0.010, 9)
    assert limit.value == LIMIT_START


def test_vegas_takes_each_time_what_it_has_made_for_normal_and_so_drifts_up() -> None:
    """Netflix #165: a probe under lasting overload learns the overload."""
    limit = Vegas()
    limit.learn(0.010, BUSY)
    values = []
    for _ in range(20_000):
        limit.learn(limit.value / 1_000, BUSY)  # 1,000 packets per second, all of L in process
        values.append(limit.value)
    plateau = values[300]
    assert plateau <= LIMIT_START
    assert values[5_000] > 2 * plateau
    assert values[-1] > 4 * plateau  # half an hour; nothing but the probes has changed


def test_gradient_grows_by_its_queue_while_the_response_is_the_usual_one() -> None:
    limit = Gradient2()
    limit.learn(0.010, BUSY)
    assert limit.value == pytest.approx(LIMIT_START + 4 * 0.2)


def test_gradient_tolerates_half_as_much_again_and_shrinks_beyond() -> None:
    limit = Gradient2()
    for _ in range(100):
        limit.learn(0.010, BUSY)
    before = limit.value
    limit.learn(0.0149, BUSY)
    assert limit.value > before
    before = limit.value
    limit.learn(0.100, BUSY)
    assert limit.value == pytest.approx(before * 0.9 + 0.8)


def test_gradient_takes_a_lasting_overload_for_normal_within_minutes() -> None:
    """It cuts at first, and is back at the maximum while nothing got better."""
    limit = Gradient2()
    for _ in range(600):
        limit.learn(0.010, BUSY)
    for _ in range(50):
        limit.learn(0.500, BUSY)
    assert limit.value < 50
    for _ in range(600):
        limit.learn(0.500, BUSY)
    assert limit.value == GRADIENT_LIMIT_MAX


def test_gradient_forgets_an_overload_faster_than_its_average_would() -> None:
    limit = Gradient2()
    for _ in range(600):
        limit.learn(0.500, BUSY)
    for _ in range(100):
        limit.learn(0.010, BUSY)
    limit.learn(0.100, BUSY)
    assert limit.value < GRADIENT_LIMIT_MAX  # 100 ms are much again, an average of 600 says so not


@given(st.lists(st.tuples(st.floats(1e-6, 100.0), st.integers(0, 10_000)), max_size=200))
def test_learned_limits_stay_within_those_of_the_library(samples: list[tuple[float, int]]) -> None:
    vegas, gradient = Vegas(), Gradient2()
    for response_s, in_process in samples:
        vegas.learn(response_s, in_process)
        gradient.learn(response_s, in_process)
        assert 1 <= vegas.value <= VEGAS_LIMIT_MAX
        assert GRADIENT_LIMIT_MIN <= gradient.value <= GRADIENT_LIMIT_MAX


@pytest.mark.parametrize(
    ("clients", "window"), [(0, 50.0), (1, 50.0), (20, 2.5), (50, 1.0), (5_000, 1.0)]
)
def test_the_limit_is_shared_by_the_active_clients_but_never_below_one_packet(
    clients: int, window: float
) -> None:
    grant = learned(Told()).tick(Sample(0.0, clients_active=clients))
    assert grant.window == window


def test_a_single_client_gets_a_hundred_at_most() -> None:
    told = Told()
    told.value = 900.0
    assert learned(told).tick(Sample(0.0, clients_active=1)).window == 100.0


def test_ten_packets_make_a_sample_however_many_ticks_they_take() -> None:
    told = Told()
    policy = learned(told)
    for now_s, completed, response_s, in_process in zip(
        ticks(0.5), [4, 0, 5, 1, 30], [0.1, 0.0, 0.2, 0.4, 0.05], [7, 9, 3, 2, 8], strict=True
    ):
        policy.tick(
            Sample(now_s, completed=completed, response_s=response_s, in_process=in_process)
        )
    assert [in_process for _, in_process in told.samples] == [9, 8]
    assert [mean for mean, _ in told.samples] == pytest.approx([0.18, 0.05])


def test_packets_that_took_no_time_at_all_teach_nothing() -> None:
    told = Told()
    learned(told).tick(Sample(0.0, completed=50, response_s=0.0, in_process=5))
    assert told.samples == []
