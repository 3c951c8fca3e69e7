import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_analysis.grains import ALL
from spark_analysis.questions.question import Better, Metric, Question, Unit
from spark_analysis.report.findings import Block, MetricSummary
from spark_analysis.report.sentences import conclusion, region_conclusion
from spark_analysis.report.words import Names, ParameterSet

SPACE = "\N{NO-BREAK SPACE}"


def sentence(better: Better, **sets: tuple[int, int, float | None, float]) -> str:
    """By policy, or policy_load: runs, runs with a value, mean, half of its interval."""
    metric = Metric("t_s", "until all are in", Unit.SECONDS, better, "never", "clients_count")
    question = Question("q", "?", "", (metric,), lambda inputs: inputs.runs)
    block = Block(question, "crowd")
    of_metric = block.summaries.setdefault("t_s", {})
    for name, (runs, values, mean, half) in sets.items():
        policy, _, load = name.partition("_")
        one = ParameterSet("crowd", policy, f"clients={load}, flow.w={policy}" if load else "")
        low, high = (None, None) if mean is None or not half else (mean - half, mean + half)
        of_metric[one, ALL] = MetricSummary(one, ALL, runs, values, mean, low, high)
    return conclusion(block, Names(one for one, _ in of_metric)).replace(SPACE, " ")


def test_the_best_and_the_last_are_named_with_how_far_they_are_apart() -> None:
    found = sentence(Better.LESS, none=(6, 6, 20.0, 1.0), shed=(6, 6, 8.0, 0.5))
    assert found == (
        "shed is best of 2: 8.00 ± 0.50 s until all are in; "
        "none is last: 20.0 ± 1.0 s (2.5 times as much); 6 runs each."
    )


def test_where_more_is_better_the_largest_is_best() -> None:
    found = sentence(Better.MORE, none=(6, 6, 20.0, 1.0), shed=(6, 6, 80.0, 0.5))
    assert found.startswith("shed is best of 2: 80.00 ± 0.50 s")
    assert "none is last: 20.0 ± 1.0 s (25 % of it)" in found


def test_intervals_that_touch_are_equal_within_noise() -> None:
    found = sentence(Better.LESS, none=(6, 6, 8.4, 0.5), shed=(6, 6, 8.0, 0.5))
    assert found.startswith("Equal within noise: between 8.00 ± 0.50 s (shed) and 8.40 ± 0.50 s")


@pytest.mark.parametrize(("other", "equal"), [(6_532.0, True), (5_950.0, True), (5_900.0, False)])
def test_single_runs_are_equal_within_a_tenth(other: float, equal: bool) -> None:
    found = sentence(Better.MORE, a=(1, 1, 6_533.0, 0.0), b=(1, 1, other, 0.0))
    assert found.startswith("Equal within noise: " if equal else "a is best of 2: ")


def test_runs_that_are_all_alike_differ_by_a_hundredth_at_least() -> None:
    found = sentence(Better.LESS, a=(6, 6, 8.0, 1e-9), b=(6, 6, 8.05, 1e-9))
    assert found.startswith("Equal within noise: ")
    found = sentence(Better.LESS, a=(6, 6, 8.0, 1e-9), b=(6, 6, 8.15, 1e-9))
    assert found.startswith("a is best of 2")


def test_who_cannot_be_told_from_the_last_is_behind_with_him() -> None:
    found = sentence(Better.LESS, a=(6, 6, 8.0, 0.5), b=(6, 6, 20.1, 0.5), c=(6, 6, 20.0, 1.0))
    assert found.startswith("a is best of 3: 8.00 ± 0.50 s until all are in; b and c are behind: ")
    more = dict.fromkeys("bcd", (6, 6, 20.0, 1.0))
    assert "; d and 2 more are behind: " in sentence(Better.LESS, a=(6, 6, 8.0, 0.5), **more)


@given(
    means=st.lists(st.floats(0.0, 1e9) | st.sampled_from([0.0, 1.0, 1.01]), min_size=2, max_size=6)
)
def test_best_and_last_are_apart_by_more_than_noise(means: list[float]) -> None:
    sets = {f"p{index}": (1, 1, mean, 0.0) for index, mean in enumerate(means)}
    found = sentence(Better.MORE, **sets)
    is_ranked = "best of" in found or "ahead" in found
    assert is_ranked == (min(means) * 1.05 < max(means) * 0.95)


def test_only_who_had_the_same_load_is_compared() -> None:
    found = sentence(
        Better.LESS,
        a_10=(6, 6, 8.0, 0.5),
        b_10=(6, 6, 20.0, 0.5),
        a_99=(6, 6, 80.0, 0.5),
        b_99=(6, 6, 80.1, 0.5),
        c_5=(1, 1, 1.0, 0.0),
    )
    assert found == (
        "a (clients=10, flow.w=a) is best of 2: 8.00 ± 0.50 s until all are in; "
        "b (clients=10, flow.w=b) is last: 20.00 ± 0.50 s (2.5 times as much); 6 runs each. "
        "Equal within noise: between 80.00 ± 0.50 s (a (clients=99, flow.w=a)) and "
        "80.10 ± 0.50 s (b (clients=99, flow.w=b)) until all are in, 6 runs each. "
        "Not compared, because each had a load of its own: 1 s (c (clients=5, flow.w=c)) "
        "until all are in."
    )


def test_of_many_loads_a_few_are_told() -> None:
    loads = {f"{p}_{n}": (1, 1, float(n), 0.0) for p in "ab" for n in range(10, 16)}
    found = sentence(Better.LESS, **loads)
    assert found.count("All 2 are the same") == 4
    assert found.endswith("2 more loads: in the table.")
    alone = {f"a_{n}": (1, 1, float(n), 0.0) for n in range(10, 16)}
    assert "; 2 more in the table until all are in." in sentence(Better.LESS, **alone)


def test_who_cannot_be_told_from_the_best_is_ahead_with_him() -> None:
    found = sentence(Better.LESS, a=(6, 6, 8.0, 0.5), b=(6, 6, 8.1, 0.5), none=(5, 5, 20.0, 1.0))
    assert found.startswith("a and b are ahead: ")
    assert found.endswith("; 5 to 6 runs each.")


def test_who_never_arrives_is_last_however_good_his_other_runs_are() -> None:
    found = sentence(Better.LESS, none=(6, 4, 2.0, 0.1), shed=(6, 6, 8.0, 0.5))
    assert found.startswith("shed is best")
    assert "none is last: 2.00 ± 0.10 s (never in 2 of 6)" in found
    found = sentence(Better.LESS, none=(6, 0, None, 0.0), shed=(6, 6, 8.0, 0.5))
    assert "none is last: never, in 6 of 6 runs; " in found


def test_one_alone_and_all_the_same() -> None:
    assert sentence(Better.LESS, shed=(1, 1, 8.0, 0.0)) == "shed: 8 s until all are in, 1 run."
    found = sentence(Better.LESS, a=(3, 3, 8.0, 0.0), b=(3, 3, 8.0, 0.0))
    assert found == "All 2 are the same: 8 s until all are in, 3 runs each."


def test_a_map_says_from_which_load_on_it_stays_collapsed() -> None:
    places = [
        {"policy": policy, "load_ratio": load, "trigger_s": trigger_s, "runs_count": 2}
        | {"recovered_count": 0 if (policy, trigger_s) == ("none", 5.0) and load > 0.7 else 2}
        for policy in ("none", "shed")
        for load in (0.7, 0.8, 0.9)
        for trigger_s in (1.0, 5.0)
    ]
    assert region_conclusion(places).replace(SPACE, " ") == (
        "none stays collapsed from load 80 % on, after a disturbance of 5 s (4 of 12 runs). "
        "shed came back from every disturbance (12 runs)."
    )
