"""The page on configuration and the settings themselves cannot drift apart."""

import tomllib
from pathlib import Path

from flowguard.cli.settings import settings_toml

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_printed_settings_are_a_toml_file_without_effect() -> None:
    sections = ("flow", "session", "node", "store", "telemetry", "http")
    assert tomllib.loads(settings_toml()) == {section: {} for section in sections}


def test_the_page_shows_what_the_command_prints() -> None:
    page = PAGE.read_text()
    block = page.split("```toml\n", 1)[1].split("```", 1)[0]
    assert block == settings_toml(), "docs/configuration.md: paste `flowguard settings` again"
