import re
import tomllib
from pathlib import Path

import pytest

from flowguard.errors import ConfigError
from spark_analysis.tuner.objective import (
    INCLUDED,
    METRICS,
    RESOLUTIONS,
    Objective,
)
from spark_sweep.tuning import load_objective

DOCS = Path(__file__).parents[3] / "docs" / "operate" / "tuning.md"
GOOD = """
title = "t"
[[objectives]]
metric = "goodput.in_time_per_s"
"""


@pytest.mark.parametrize("name", sorted(INCLUDED))
def test_those_that_are_here_go_by_their_name(name: str) -> None:
    wanted = load_objective(name)
    assert {one.metric for one in wanted.measured} <= set(METRICS)
    assert "survival.deaths_count" in {one.metric for one in wanted.constraints}
    assert "memory.headroom_ratio" in {one.metric for one in wanted.constraints}


def test_the_one_in_the_documentation_can_be_used() -> None:
    (text,) = re.findall(r"```toml\n(title.*?)```", DOCS.read_text(), re.DOTALL)
    wanted = Objective.model_validate(tomllib.loads(text))
    assert wanted.against.metric == "latency.acknowledgement_p99_s"


def test_what_it_is_drawn_against_is_the_first_constraint_or_else_memory() -> None:
    bare = Objective.model_validate(tomllib.loads(GOOD))
    assert bare.against.metric == "memory.headroom_ratio"
    bound = '[[constraints]]\nmetric = "loss.lost_count"\nat_most = 0\n'
    assert Objective.model_validate(tomllib.loads(GOOD + bound)).against.metric == "loss.lost_count"


def test_every_unit_says_what_is_next_to_nothing() -> None:
    assert {metric.unit for metric in METRICS.values()} <= set(RESOLUTIONS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "weight = 0", "objectives.0.weight: 0 is not more than 0"),
        (GOOD + "wieght = 1", "objectives.0.wieght: unknown key; did you mean weight?"),
        ("tolerence = 1\n" + GOOD, "tolerence: unknown key; did you mean tolerance?"),
        ('title = "t"\nobjectives = []', "objectives: there is none"),
        ('title = "t"', "objectives: is missing"),
        (
            GOOD.replace("in_time_per_s", "in_time_per"),
            "there is no metric goodput.in_time_per; did you mean goodput.in_time_per_s",
        ),
        (GOOD.replace("goodput.in_time_per_s", "admission.accepted_count"), "neither good nor bad"),
        (
            GOOD + '[[constraints]]\nmetric = "loss.lost_count"',
            "constraints.0: one of at_least, at_most",
        ),
        (GOOD + "[weights]\ncrowd = 0.0", "weights.crowd: 0.0 is not more than 0"),
        (GOOD + "[held_out]\nshare = 1.0", "held_out.share: 1.0 is not less than 1"),
        ("qqq = 1\n" + GOOD, "qqq: unknown key; see docs/operate/tuning.md"),
        ('title = "t"\nobjektives = 1', "objektives: unknown key; did you mean objectives?"),
        ("title = ", "is not valid TOML"),
        ("title = " + "[" * 9_999, "is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_that_names_file_and_key(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as failure:
        load_objective(str(path))
    assert said in str(failure.value)
    assert "mine.toml" in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_name_that_nobody_has_is_told_those_that_are_there() -> None:
    with pytest.raises(ConfigError, match="neither a file nor connect, goodput"):
        load_objective("throughput")
