"""The order in which holders give way when a budget is spent."""

from hypothesis import given
from hypothesis.strategies import integers, lists, none, one_of, tuples

from flowguard.flow import Budget, Holders

KIB = 1024


def holders() -> Holders[str]:
    return Holders(Budget(1_000 * KIB))


def test_nobody_gives_way_where_nobody_holds_anything() -> None:
    assert holders().costliest(1.0) is None


def test_who_stands_still_gives_way_to_who_moves() -> None:
    held = holders()
    held.hold("still", 60 * KIB, 1.0, claim_bytes=60 * KIB)
    for tick in range(20):
        held.hold("moves", 60 * KIB + tick, 1.0 + tick / 10, claim_bytes=60 * KIB)
    assert held.costliest(3.0) == "still"


def test_who_claims_little_is_not_asked_for_those_who_claim_much() -> None:
    held = holders()
    held.hold("small", 100, 1.0, claim_bytes=20 * KIB)
    for number in range(50):
        held.hold(f"large-{number}", 2 * KIB, 1.0, claim_bytes=1_000 * KIB)
    assert held.costliest(1.5) == "large-0"


def test_a_small_one_of_the_turn_before_is_not_asked_for_larger_ones_of_this_turn() -> None:
    held = holders()
    held.hold("small", 10 * KIB, 1.0, claim_bytes=20 * KIB)
    for number in range(50):
        held.hold(f"large-{number}", 20 * KIB, 1.02, claim_bytes=60 * KIB)
    assert held.costliest(1.02) == "large-0"


def test_a_large_one_that_moves_is_not_asked_for_many_small_ones_that_do_not() -> None:
    held = holders()
    for number in range(50):
        held.hold(f"small-{number}", 20 * KIB, 1.0, claim_bytes=20 * KIB)
    held.hold("large", 500 * KIB, 2.99, claim_bytes=1_000 * KIB)
    assert held.costliest(3.0) == "small-0"


def test_who_is_not_to_give_way_is_never_asked() -> None:
    held = holders()
    held.hold("paused", 60 * KIB, 1.0, claim_bytes=None)
    assert held.costliest(9.0) is None
    held.hold("paused", 60 * KIB, 1.0, claim_bytes=0)
    assert held.costliest(9.0) == "paused"
    assert held.costliest(9.0, since_s=0.9) is None


@given(
    moves=lists(
        tuples(integers(0, 8), integers(0, 300 * KIB), one_of(none(), integers(0, 900 * KIB))),
        max_size=60,
    )
)
def test_the_budget_is_the_sum_and_asking_ends(
    moves: list[tuple[int, int, int | None]],
) -> None:
    held: Holders[int] = Holders(Budget(500 * KIB))
    model: dict[int, tuple[int, int | None]] = {}
    for at, (key, size_bytes, claim_bytes) in enumerate(moves):
        held.hold(key, size_bytes, float(at), claim_bytes=claim_bytes)
        model[key] = (size_bytes, claim_bytes)
        model = {key: held for key, held in model.items() if held[0]}
        assert held.budget.used_bytes == sum(size for size, _ in model.values())
        while held.is_over and (found := held.costliest(float(at))) is not None:
            assert model[found][1] is not None
            held.hold(found, 0, float(at), claim_bytes=None)
            del model[found]
        assert not held.is_over or all(claim is None for _, claim in model.values())
        assert len(held) == len(model)
