from spark_analysis.grains import ALL
from spark_analysis.questions.question import Better, Metric, Question, Unit
from spark_analysis.report.findings import Block, Summary
from spark_analysis.report.sentences import conclusion, region_conclusion
from spark_analysis.report.words import Names, ParameterSet

SPACE = "\N{NO-BREAK SPACE}"


def sentence(better: Better, **sets: tuple[int, int, float | None, float]) -> str:
    """By policy: runs, runs with a value, mean, half of its interval."""
    metric = Metric("t_s", "until all are in", Unit.SECONDS, better, "never", "clients_count")
    question = Question("q", "?", "", (metric,), lambda inputs: inputs.runs)
    block = Block(question, "crowd")
    of_metric = block.summaries.setdefault("t_s", {})
    for policy, (runs, values, mean, half) in sets.items():
        one = ParameterSet("crowd", policy, "")
        low, high = (None, None) if mean is None or not half else (mean - half, mean + half)
        of_metric[one, ALL] = Summary(one, ALL, runs, values, mean, low, high)
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


def test_intervals_that_touch_are_no_difference() -> None:
    found = sentence(Better.LESS, none=(6, 6, 8.4, 0.5), shed=(6, 6, 8.0, 0.5))
    assert found.startswith("No clear difference: between 8.00 ± 0.50 s (shed) and 8.40 ± 0.50 s")


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
    assert found == "The same for all 2: 8 s until all are in, 3 runs each."


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
