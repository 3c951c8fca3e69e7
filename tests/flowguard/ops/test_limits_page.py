"""docs/explain/limits.md names every bound there is, and only metrics that exist."""

import re
from pathlib import Path

import pytest

from flowguard.bounds import GROUPS, LONG, RECORDING, WORK
from flowguard.config import Settings

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "explain" / "limits.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
][1:]
METRICS = set(
    re.findall(
        r"^\| `(flowguard_\w+)`", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE
    )
)
"""Settings on the page that another test compares with the broker."""
NO_BOUNDS = {
    "flow.cost_bytes",  # A weight.
    "session.maximum_qos",  # A right.
    "session.topic_alias_qos_max",  # A choice, not a number.
}


def bound_settings() -> set[str]:
    """Return the keys of settings that are bounds, by the naming rules of the project."""
    keys = set()
    for section, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type)
        for name in field.annotation.model_fields:  # type: ignore[attr-defined]
            if re.search(r"(^|_)(max|maximum)(_|$)|_bytes$|_reserve$", name):
                keys.add(f"{section}.{name}")
    return keys - NO_BOUNDS


def test_every_bound_of_the_settings_has_its_row() -> None:
    named = [re.findall(r"`([^`]+)`", row[1])[0] for row in ROWS]
    assert sorted(named) == sorted(set(named)), "a bound has two rows"
    assert set(named) == bound_settings()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[1]))
def test_a_row_says_everything_and_its_metric_exists(row: list[str]) -> None:
    what, bound, default, follows, happens, metric = (cell.strip() for cell in row)
    assert what
    assert default
    assert happens, bound
    assert follows in ("", "memory", "the disk", "the machine", "the node's") or follows.startswith(
        "memory, "
    )
    (name,) = re.findall(r"`(\w+)`", metric)
    assert name in METRICS


@pytest.mark.parametrize("share", [*LONG, *WORK, RECORDING, GROUPS], ids=lambda share: share.key)
def test_the_weights_are_those_of_the_code(share: object) -> None:
    (row,) = [row for row in ROWS if row[1].strip() == f"`{share.key}`"]  # type: ignore[attr-defined]
    part = "work" if share in WORK else "for long"
    assert f"share {share.weight}, {part}" in row[2]  # type: ignore[attr-defined]
