"""Costs: what work costs one machine, as a small TOML file that overlays any scenario.

Three tables, as in a scenario, with some of their keys: other keys stay as the scenario has
them.

    [node]
    connect_s = 4.1e-05
    [store]
    commit_s = 0.00021
    [network]
    latency_s = 3.4e-05
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from flowguard.errors import ConfigError
from simulations.scenario import NetworkPlan, NodePlan, Scenario, StorePlan
from simulations.scenario_files.complaints import refusal
from simulations.scenario_files.loading import read_toml

Costs = dict[str, dict[str, Any]]
"""Values by key by table."""
PLANS: Final[Mapping[str, type[BaseModel]]] = {
    "node": NodePlan,
    "store": StorePlan,
    "network": NetworkPlan,
}
DIGITS: Final = 4
"""Significant digits; more of them would be noise."""


def costs_toml(costs: Costs, comments: Sequence[str] = ()) -> str:
    """The text of a costs file; `comments` go on top of it."""
    lines = [f"# {comment}" for comment in comments]
    for table, values in costs.items():
        lines += ["", f"[{table}]"]
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _value(value: float) -> str:
    return json.dumps(float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value)


def load_costs(path: Path) -> Costs:
    """The tables of a costs file; raises ConfigError naming the file, the key and what is wrong."""
    tables = read_toml(path)
    for name, values in tables.items():
        plan = PLANS.get(name)
        if plan is None:
            known = ", ".join(PLANS)
            raise ConfigError(f"{path}: {name}: costs have the tables {known} and no others")
        try:
            plan.model_validate(values)
        except ValidationError as error:
            raise refusal(path, error, plan, inside=name) from error
    return tables


def flat_costs(path: Path) -> dict[str, Any]:
    """The values of a costs file by dotted key, as changes of a scenario; raises ConfigError."""
    tables = load_costs(path)
    return {
        f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()
    }


def with_costs(scenario: Scenario, costs: Costs) -> Scenario:
    """The scenario on a machine with these costs; all else stays."""
    plain = scenario.model_dump()
    for table, values in costs.items():
        plain[table] |= values
    return Scenario.model_validate(plain)
