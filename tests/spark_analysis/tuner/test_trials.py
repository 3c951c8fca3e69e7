import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_analysis.tuner.trials import DEFAULTS, Place, Trials, place_names, plain, sort_out, split
from tests.spark_analysis.tuner.tried import Tried, candidate


def sorted_out(*tried: Tried) -> Trials:
    return sort_out([one.run for one in tried], "flowguard")


def test_of_no_run_there_are_no_trials() -> None:
    trials = sorted_out()
    assert (trials.run_ids, trials.candidates, trials.places, trials.seeds()) == ({}, [], [], [])


def test_a_single_run_without_limits_is_the_defaults() -> None:
    trials = sorted_out(Tried(7, 1.0))
    assert trials.run_ids == {(DEFAULTS, Place("crowd"), 7): "crowd-flowguard-7"}
    assert trials.commands == {"crowd-flowguard-7": "flowguard simulate crowd-flowguard-7"}
    assert (trials.seeds(), trials.default_limits["window_max"]) == ([7], "100")


def test_limits_make_the_candidate_and_all_other_parameters_the_place() -> None:
    trials = sorted_out(
        Tried(1, 1.0, load={"load": "0.9", "clients": "300"}),
        Tried(1, 1.0, {"window_max": "50"}, load={"load": "0.9", "clients": "300"}),
    )
    place = Place("crowd", "clients=300, load=0.9")
    assert set(trials.run_ids) == {(DEFAULTS, place, 1), (candidate(window_max="50"), place, 1)}
    assert place.name == "crowd (clients=300, load=0.9)"


def test_a_limit_that_is_set_to_what_it_is_anyway_is_no_change() -> None:
    trials = sorted_out(
        Tried(1, 1.0), Tried(1, 1.0, {"queue_objective_s": "0.0250", "window_max": "50"})
    )
    assert trials.candidates == [DEFAULTS, candidate(window_max="50")]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0.050", "0.05"),
        ("50.0", "50"),
        ("1e-05", "1e-05"),
        ("path", "path"),
        ("None", ""),
        ("", ""),
        ("inf", "inf"),
        ("True", "True"),
    ],
)
def test_one_value_has_one_text(written: str, value: str) -> None:
    assert plain(written) == value


def test_of_two_runs_that_tried_the_same_one_counts() -> None:
    trials = sorted_out(Tried(1, 1.0, copy=2), Tried(1, 2.0, copy=1))
    assert list(trials.run_ids.values()) == ["crowd-flowguard-1-1"]
    assert trials.repeated == ("crowd-flowguard-1-2",)


def test_other_policies_and_runs_that_were_stopped_are_no_trials() -> None:
    trials = sorted_out(Tried(1, 1.0, policy="vegas"), Tried(2, 1.0, ended_by="stopped"))
    assert not trials.run_ids
    assert trials.others == ("crowd-flowguard-2", "crowd-vegas-1")


def test_only_seeds_with_which_the_defaults_ran_everywhere_count() -> None:
    trials = sorted_out(
        *(Tried(seed, 1.0, scenario="a") for seed in (1, 2, 3)),
        *(Tried(seed, 1.0, scenario="b") for seed in (2, 3, 4)),
        Tried(2, 1.0, {"window_max": "50"}, scenario="a"),
        Tried(2, 1.0, {"window_max": "50"}, scenario="elsewhere"),
    )
    assert trials.seeds() == [2, 3]
    assert trials.places == [Place("a"), Place("b")]
    assert trials.missing(candidate(window_max="50"), trials.seeds()) == 3


def test_places_are_called_by_what_not_all_of_their_scenario_have() -> None:
    places = [
        Place("storm", "clients=9, load=1"),
        Place("storm", "clients=9, load=2"),
        Place("crowd", "clients=9"),
    ]
    assert list(place_names(places).values()) == ["storm (load=1)", "storm (load=2)", "crowd"]


def test_a_default_that_depends_on_the_scenario_is_none() -> None:
    one, other = Tried(1, 1.0, scenario="a").run, Tried(1, 1.0, scenario="b").run
    other.run["limits"]["window_max"] = "20"
    trials = sort_out([one, other], "flowguard")
    assert "window_max" not in trials.default_limits
    assert trials.default_limits["queue_objective_s"] == "0.025"


@given(st.sets(st.integers(-(2**40), 2**40)), st.floats(0.05, 0.95))
def test_every_seed_is_in_one_part_whatever_the_order(seeds: set[int], share: float) -> None:
    found = split(seeds, share)
    assert sorted((*found.training, *found.held_out)) == sorted(seeds)
    assert found == split(sorted(seeds, reverse=True), share)
    assert len(seeds) * share <= len(found.held_out) + 1e-6
    assert len(found.held_out) < len(seeds) * share + 1


def test_which_seeds_are_held_out_stays_the_same_for_ever() -> None:
    found = split(range(1, 9), 0.5)
    assert (found.training, found.held_out) == ((2, 4, 6, 7), (1, 3, 5, 8))
