"""Goals of one row against another, and the order in which samples are taken."""

from pathlib import Path

import pytest

from benchmarks.__main__ import plan
from benchmarks.peers import BROKERS
from benchmarks.runner import Sample
from benchmarks.scenarios import SCENARIOS, find
from benchmarks.verdicts import OURS, Results, Verdict

DURABLE, MEMORY = find(["durable-1000-16", "memory-1000-16"])
IN_MEMORY = next(goal for goal in DURABLE.goals if goal.row == MEMORY.key)


def sample(scenario: str, value: float, **figures: float) -> Sample:
    return Sample(OURS, scenario, {"value": value, **figures})


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([sample(DURABLE.key, 60), sample(MEMORY.key, 100)], Verdict.PASS),
        ([sample(DURABLE.key, 59), sample(MEMORY.key, 100)], Verdict.MISS),
        ([sample(DURABLE.key, 60)], Verdict.OPEN),
        ([sample(DURABLE.key, 60, lost=1), sample(MEMORY.key, 100)], Verdict.MISS),
        ([sample(DURABLE.key, 60), sample(MEMORY.key, 100, lost=1)], Verdict.OPEN),
    ],
)
def test_a_row_is_judged_against_another_row_of_the_same_broker(
    samples: list[Sample], verdict: Verdict
) -> None:
    results = Results([DURABLE, MEMORY], samples)
    assert results.judge(DURABLE, IN_MEMORY).verdict is verdict


@pytest.mark.parametrize(("by_tls", "verdict"), [(60, Verdict.PASS), (40, Verdict.MISS)])
def test_a_row_by_tls_is_judged_by_the_ratio_that_the_plain_one_has(
    by_tls: float, verdict: Verdict
) -> None:
    plain, tls = find(["qos1-100-w10"])[0], find(["qos1-100-w10-tls"])[0]
    theirs = [
        Sample("mosquitto", plain.key, {"value": 50}),
        Sample("mosquitto", tls.key, {"value": 25}),
    ]
    ours = [sample(plain.key, 100), sample(tls.key, by_tls)]
    results = Results([plain, tls], [*ours, *theirs])
    assert results.judge(tls, tls.goals[0]).verdict is verdict
    assert results.judge(tls, tls.goals[0]).reached == by_tls / 50


def test_every_goal_that_names_a_row_or_a_peer_names_one_that_there_is() -> None:
    keys = {scenario.key for scenario in SCENARIOS}
    for scenario in SCENARIOS:
        assert scenario.beside in {"", *keys}
        for goal in scenario.goals:
            assert goal.row in {"", *keys}
            assert goal.peer in {"", *BROKERS}


def test_rows_of_one_load_are_interleaved() -> None:
    steps = list(plan([BROKERS[OURS]], (DURABLE, MEMORY), repeat=2))
    assert [scenario.key for scenario, _ in steps] == [DURABLE.key, MEMORY.key] * 2


def test_only_the_rows_in_memory_run_without_a_disk(tmp_path: Path) -> None:
    for scenario in SCENARIOS:
        command = BROKERS[OURS].command(0, tmp_path, scenario.key)
        assert ("memory" in command) == scenario.key.startswith("memory-")
