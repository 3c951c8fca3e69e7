"""The printed settings are valid, and each description ends with its unit."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from flowguard.cli.settings import settings_toml
from flowguard.config import Settings
from flowguard.section import meanings


def test_the_printed_settings_are_a_toml_file_without_effect() -> None:
    sections = ("flow", "session", "node", "store", "redis", "cluster", "kafka")
    sections += ("telemetry", "http", "network", "log")
    assert tomllib.loads(settings_toml()) == {section: {} for section in sections}


def described() -> Iterator[tuple[str, str]]:
    """Every key with its section, and what is said of it."""
    for title, item in Settings.model_fields.items():
        section: Any = item.annotation
        said = meanings(section)
        for key in section.model_fields:
            yield f"{title}.{key}", " ".join(said[key].split())


@pytest.mark.parametrize(("key", "text"), [pytest.param(*pair, id=pair[0]) for pair in described()])
def test_a_setting_ends_with_its_unit_and_has_none_where_there_is_none(key: str, text: str) -> None:
    assert text.endswith("."), "a description is a sentence"
    assert key.endswith("_s") == text.endswith(", seconds."), text
    assert ("bytes" in key or "packet_size" in key) == text.endswith(", bytes."), text
    pseudo = r", (names?|rule|topic|path|QoS|filters|levels|aliases|sessions|clients|threads)\.$"
    assert not re.search(pseudo, text), "what is counted is no unit"
