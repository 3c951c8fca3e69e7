"""Shadow limits: a second set of limits that only reports."""

from typing import Any

import pytest

from flowguard.config import FlowSettings
from tests.support.stage import Stage


@pytest.mark.parametrize(
    ("named", "limits", "policy", "window"),
    [
        (None, {"window_max": 20}, "flowguard", 20),
        (None, {"policy": "static-10"}, "static-10", 10),
        ("level-map", {"window_max": 20}, "level-map", 20),
    ],
)
def test_other_limits_watch_as_another_policy_does(
    named: str | None, limits: dict[str, Any], policy: str, window: int
) -> None:
    stage = Stage({"flow": {"shadow_policy": named}}, shadow=FlowSettings.model_validate(limits))
    stage.advance(1)
    assert stage.node.guard.window.limit == 100
    assert stage.node.guard.shadow is not None
    report = stage.node.guard.shadow.report()
    assert (report.policy, report.window, report.window_real) == (policy, window, 100)
