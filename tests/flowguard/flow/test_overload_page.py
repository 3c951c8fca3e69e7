"""docs/explain/overload.md has every knob of the law with its default, and every policy."""

import re
from pathlib import Path
from typing import get_args

import pytest

from flowguard.config import KIB, MIB, FlowSettings, PolicyName

PAGE = (Path(__file__).parents[3] / "docs" / "explain" / "overload.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
DERIVED = {"unfinished_bytes_max", "memory_max_bytes"}
"""Absent by default: the page says in words what takes their place."""


def test_each_knob_is_on_the_page_and_no_other() -> None:
    knobs = {key for key in ROWS if key in FlowSettings.model_fields}
    assert knobs == set(FlowSettings.model_fields)


@pytest.mark.parametrize("key", sorted(set(FlowSettings.model_fields) - DERIVED))
def test_the_page_shows_the_default(key: str) -> None:
    shown = ROWS[key].strip()
    number, _, unit = shown.partition(" ")
    default = getattr(FlowSettings(), key)
    if default is None:
        assert shown == "none"
    elif isinstance(default, str):
        assert shown == default
    else:
        assert float(number) * {"": 1, "KiB": KIB, "MiB": MIB}[unit] == default


def test_each_policy_is_on_the_page() -> None:
    assert all(f"`{name}`" in PAGE for name in get_args(PolicyName) if name != "flowguard")
