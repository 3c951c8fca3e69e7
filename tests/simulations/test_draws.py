from hypothesis import given
from hypothesis import strategies as st

from simulations.draws import Draws, random_for

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1_000))))
def test_a_draw_depends_on_its_address_and_not_on_who_drew_before(
    seed: int, addresses: list[tuple[int, int]]
) -> None:
    draws = Draws(seed, "retry")
    forwards = [draws.uniform(*address) for address in addresses]
    backwards = [draws.uniform(*address) for address in reversed(addresses)]
    assert forwards == backwards[::-1]
    assert all(0.0 <= draw < 1.0 for draw in forwards)


@given(SEEDS)
def test_purposes_and_seeds_are_strangers_to_each_other(seed: int) -> None:
    one, other, next_seed = Draws(seed, "one"), Draws(seed, "other"), Draws(seed + 1, "one")
    for stranger in (other, next_seed):
        assert [one.uniform(0, n) for n in range(4)] != [stranger.uniform(0, n) for n in range(4)]
    assert random_for(seed, "one").random() == random_for(seed, "one").random()
    assert random_for(seed, "one").random() != random_for(seed, "other").random()


def test_draws_are_even_for_many_clients_for_many_draws_of_one_and_for_neighbours() -> None:
    """Chi square over 64 bins and 64,000 draws: 63 degrees of freedom, 120 is one in 20,000."""
    draws = Draws(1, "evenness")
    count = 64_000
    for values in (
        [draws.uniform(client) for client in range(count)],
        [draws.uniform(7, number) for number in range(count)],
        [(draws.uniform(c, 1) - draws.uniform(c, 0)) % 1.0 for c in range(count)],
        [(draws.uniform(c + 1, 0) - draws.uniform(c, 1)) % 1.0 for c in range(count)],
    ):
        bins = [0] * 64
        for value in values:
            bins[int(value * 64)] += 1
        assert sum((found - count / 64) ** 2 / (count / 64) for found in bins) < 120


def test_exponential_draws_have_mean_one_and_forget_the_past() -> None:
    draws = Draws(3, "arrivals")
    values = [draws.exponential(client) for client in range(50_000)]
    assert 0.98 < sum(values) / len(values) < 1.02
    longer = [value - 1.0 for value in values if value > 1.0]
    assert 0.97 < sum(longer) / len(longer) < 1.03
