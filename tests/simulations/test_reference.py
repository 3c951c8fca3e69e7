"""The page on simulations and the scenario's keys agree."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from flowguard.config import FlowSettings
from flowguard.flow.policies import POLICIES
from simulations.scenario import Scenario
from simulations.scenario_files.complaints import model_of
from simulations.scenario_files.loading import load, names
from simulations.scenario_files.reference import keys_toml

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "simulation.md"


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        inner = model_of(field.annotation)
        if inner is not None and inner is not FlowSettings:
            yield from keys(inner)


def test_the_printed_keys_are_a_toml_file_without_effect() -> None:
    assert tomllib.loads(keys_toml()) == {}


def test_the_examples_of_the_page_are_scenarios(tmp_path: Path) -> None:
    page = PAGE.read_text()
    for suffix, start in (("toml", "```toml\ntitle"), ("python", "```python\nfrom")):
        text = page[page.index(start) :].split("\n", 1)[1].split("```", 1)[0]
        mine = tmp_path / f"mine.{suffix[:2] if suffix == 'python' else suffix}"
        mine.write_text(text)
        assert load(str(mine)).scenario.clients in (50_000, 24_000)


def test_every_key_is_explained() -> None:
    words = keys_toml().replace("[", " ").replace("]", " ").replace(".", " ").split()
    assert [name for name in keys(Scenario) if name not in words] == []


def test_the_page_names_every_scenario_and_every_policy() -> None:
    page = PAGE.read_text()
    assert [name for name in (*names(), *POLICIES) if f"`{name}`" not in page] == []
