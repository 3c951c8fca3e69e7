"""Scores, computed by hand."""

import math
from collections.abc import Mapping

import pytest

from spark_analysis.tuner.measuring import Measures, Value
from spark_analysis.tuner.objective import Objective
from spark_analysis.tuner.scoring import Scores
from spark_analysis.tuner.trials import DEFAULTS, Place, sort_out
from tests.spark_analysis.tuner.tried import GOODPUT, MEMORY, Tried, candidate, measures, objective

LIMITS = {"window_max": "50"}
ONE = candidate(**LIMITS)
HERE = Place("crowd")
T99 = "time_to_connect.t99_s"


def scores(*tried: Tried, wanted: Objective | None = None, metric: str = GOODPUT) -> Scores:
    trials = sort_out([one.run for one in tried], "flowguard")
    return Scores(wanted or objective(), trials, measures(tried, metric))


def pair(default: Value, value: Value, metric: str, **term: float) -> float | None:
    """The score of one run beside another."""
    wanted = objective(objectives=[{"metric": metric, **term}])
    tried = (Tried(1, default), Tried(1, value, LIMITS))
    return scores(*tried, wanted=wanted, metric=metric).pair(ONE, HERE, 1)


@pytest.mark.parametrize(
    ("metric", "default", "value", "ratio"),
    [
        (GOODPUT, 100.0, 120.0, 1.2),
        (GOODPUT, 100.0, 50.0, 0.5),
        (T99, 10.0, 20.0, 0.5),
        (T99, 10.0, 5.0, 2.0),
        ("admission.refused_count", 0.0, 0.0, 1.0),
        ("admission.refused_count", 0.0, 4.0, 0.25),
        ("admission.refused_count", 8.0, 0.0, 8.0),
    ],
)
def test_a_ratio_is_turned_so_that_more_is_better(
    metric: str, default: float, value: float, ratio: float
) -> None:
    found = pair(default, value, metric)
    assert found is not None
    assert math.exp(found) == pytest.approx(ratio)


def test_values_below_the_resolution_are_as_good_as_it() -> None:
    assert pair(0.02, 0.08, T99, resolution=0.1) == 0.0
    assert pair(0.2, 0.08, T99, resolution=0.1) == pytest.approx(math.log(2))


def test_who_never_gets_there_is_out_and_gets_no_credit_where_the_defaults_never_do() -> None:
    assert pair(10.0, None, T99) == -math.inf
    assert pair(None, 10.0, T99) == 0.0
    assert pair(None, None, T99) == 0.0


def test_terms_and_scenarios_are_a_weighted_geometric_mean() -> None:
    wanted = objective(
        objectives=[{"metric": GOODPUT, "weight": 3.0}, {"metric": MEMORY}],
        weights={"storm": 2.0},
    )
    tried = (
        Tried(1, 100.0, memory=0.5),
        Tried(1, 200.0, LIMITS, memory=0.25),  # 2 ** 3/4 * (1/2) ** 1/4
        Tried(1, 100.0, scenario="storm"),
        Tried(1, 400.0, LIMITS, scenario="storm"),  # 4 ** 3/4
    )
    found = scores(*tried, wanted=wanted)
    assert found.pair(ONE, HERE, 1) == pytest.approx(0.5 * math.log(2))
    assert found.pair(ONE, Place("storm"), 1) == pytest.approx(1.5 * math.log(2))
    both = found.seed(ONE, (HERE, Place("storm")), 1)
    assert both == pytest.approx((0.5 + 2 * 1.5) / 3 * math.log(2))


def test_the_loads_of_a_scenario_together_weigh_as_much_as_the_scenario() -> None:
    places = (HERE, Place("storm", "load=1"), Place("storm", "load=2"))
    tried = []
    for place, ratio in zip(places, (1, 2, 8), strict=True):
        load = {"load": place.load[5:]} if place.load else {}
        tried.append(Tried(1, 10.0, scenario=place.scenario, load=load))
        tried.append(Tried(1, 10.0 * ratio, LIMITS, scenario=place.scenario, load=load))
    # The scenarios: 1 and sqrt(2 * 8) = 4; together sqrt(1 * 4) = 2.
    assert scores(*tried).seed(ONE, places, 1) == pytest.approx(math.log(2))


def test_a_term_counts_where_it_is_asked_for_and_measured() -> None:
    wanted = objective(objectives=[{"metric": GOODPUT, "scenarios": ["storm"]}])
    tried = (Tried(1, 1.0), Tried(1, 9.0, LIMITS))
    assert scores(*tried, wanted=wanted).pair(ONE, HERE, 1) is None
    assert scores(*tried, wanted=wanted).seed(ONE, [HERE], 1) is None
    other = objective(objectives=[{"metric": GOODPUT, "population": "quiet"}])
    assert scores(*tried, wanted=other).pair(ONE, HERE, 1) is None


def broken(found: Scores, seeds: tuple[int, ...] = (1, 2)) -> list[str]:
    return [str(breach) for breach in found.breaches(ONE, [HERE], seeds)]


def test_a_constraint_must_hold_in_every_run() -> None:
    tried = [Tried(seed, 1.0) for seed in (1, 2)]
    held = [Tried(seed, 1.0, LIMITS, memory=0.1) for seed in (1, 2)]
    assert broken(scores(*tried, *held)) == []
    held[1] = Tried(2, 1.0, LIMITS, memory=0.09)
    assert broken(scores(*tried, *held)) == ["memory left < 10\N{NO-BREAK SPACE}% in 1 of 2 runs"]


def test_a_violated_invariant_and_a_value_never_reached_are_breaches_too() -> None:
    wanted = objective(objectives=[{"metric": T99}])
    tried = [Tried(seed, 5.0) for seed in (1, 2)]
    tried += [Tried(1, 5.0, LIMITS, is_violated=True), Tried(2, None, LIMITS)]
    assert broken(scores(*tried, wanted=wanted, metric=T99)) == [
        "an invariant is violated in 1 of 2 runs",
        "until 99 % were connected: never in 1 of 2 runs",
    ]


@pytest.mark.parametrize(
    ("metric", "bound", "is_kept"),
    [
        (T99, {"at_most": 60.0}, False),  # never
        ("latency.connect_p99_s", {"at_most": 60.0}, False),  # beyond all bounds
        ("cascade.first_fell_s", {"at_least": 60.0}, True),  # no node fell
    ],
)
def test_a_missing_value_keeps_a_bound_if_what_it_means_is_good(
    metric: str, bound: Mapping[str, float], is_kept: bool
) -> None:
    wanted = objective(constraints=[{"metric": metric, **bound}])
    tried = (Tried(1, 1.0), Tried(1, 1.0, LIMITS))
    trials = sort_out([one.run for one in tried], "flowguard")
    known = {**measures(tried).values, **{(metric, "all", one.run_id): None for one in tried}}
    found = Scores(wanted, trials, Measures(known, frozenset()))
    assert bool(broken(found, (1,))) is not is_kept


@pytest.mark.parametrize(
    ("default", "value", "is_kept"),
    [
        (2.0, 3.0, True),
        (2.0, 3.1, False),
        (2.0, None, False),
        (None, 9.0, True),
        (None, None, True),
    ],
)
def test_a_bound_of_the_defaults_is_one_of_the_same_seed(
    default: Value, value: Value, is_kept: bool
) -> None:
    wanted = objective(
        objectives=[{"metric": T99}], constraints=[{"metric": T99, "at_most_of_defaults": 1.5}]
    )
    tried = [Tried(1, default), Tried(1, value, LIMITS), Tried(2, 100.0), Tried(2, 100.0, LIMITS)]
    found = broken(scores(*tried, wanted=wanted, metric=T99))
    words = "until 99 % were connected > 1.5 times the defaults' in 1 of 2 runs"
    assert (words in found) is not is_kept


def test_a_bound_from_below_is_one_of_the_defaults_as_well() -> None:
    wanted = objective(constraints=[{"metric": GOODPUT, "at_least_of_defaults": 0.5}])
    found = scores(
        *(Tried(seed, 100.0) for seed in (1, 2)),
        Tried(1, 50.0, LIMITS),
        Tried(2, 49.0, LIMITS),
        wanted=wanted,
    )
    assert broken(found) == ["in time < 0.5 times the defaults' in 1 of 2 runs"]


def test_the_worst_run_is_what_the_objective_is_drawn_against() -> None:
    tried = [Tried(seed, 1.0, memory=memory) for seed, memory in ((1, 0.4), (2, 0.3))]
    assert scores(*tried).worst(DEFAULTS, [HERE], (1, 2)) == 0.3
    wanted = objective(tradeoff={"metric": T99})
    late = [Tried(1, 4.0), Tried(2, 5.0)]
    assert scores(*late, wanted=wanted, metric=T99).worst(DEFAULTS, [HERE], (1, 2)) == 5.0
    late[0] = Tried(1, None)
    assert scores(*late, wanted=wanted, metric=T99).worst(DEFAULTS, [HERE], (1, 2)) is None
