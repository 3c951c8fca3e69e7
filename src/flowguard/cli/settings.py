"""Settings from TOML files and `FLOWGUARD_...` variables, with errors that name the key.

Later sources take precedence: defaults, `--config`, `--limits`, variables, command-line options.
"""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flowguard.bounds import Bounds
from flowguard.broker.memory import bounds_of
from flowguard.config import FlowSettings, Settings
from flowguard.errors import ConfigError
from flowguard.lines import read
from flowguard.section import Section, complaint, meanings, with_paths

PREFIX = "FLOWGUARD_"
SEPARATOR = "__"
LIMITS = "flow"
"""The section that a file of limits may set."""
EVIDENCE = "evidence"
"""Section with the origin of the limits, for people."""

Values = dict[str, Any]
"""Tables by section, unchecked: values may have any type."""
Given = Mapping[str, tuple[str, object]]
"""Command-line options by setting (`flow.policy`): the name of each, and its value."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, str]
    """The file, variable or option that set each key; keys with defaults are not included."""
    bounds: Bounds
    """The bounds that follow from the settings on this machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    path: Path
    values: Values
    """The values of section `flow`, by key."""


def load(
    path: Path | None,
    environ: Mapping[str, str],
    limits: Limits | None = None,
    given: Given = MappingProxyType({}),
) -> LoadedSettings:
    """Load the settings: defaults, the file, limits, `FLOWGUARD_FLOW__WINDOW_MAX=50` and similar
    variables, and options. Relative paths in the file begin at its folder.

    Raises ConfigError with the key or file, and the reason.
    """
    values: Values = {} if path is None else _read_settings(path)
    origins = {key: str(path) for key in _keys_in(values)}
    if limits is not None:
        _table(values, LIMITS, str(limits.path)).update(limits.values)
        origins |= {f"{LIMITS}.{key}": str(limits.path) for key in limits.values}
    for name, text in sorted(environ.items()):
        section, separator, key = name.removeprefix(PREFIX).lower().partition(SEPARATOR)
        if name.startswith(PREFIX) and separator:
            _table(values, section, name)[key] = text
            origins[f"{section}.{key}"] = name
    for setting, (option, value) in given.items():
        section, _, key = setting.partition(".")
        _table(values, section, option)[key] = value
        origins[setting] = option
    settings = settings_of(values)
    return LoadedSettings(settings, origins, bounds_of(settings))


def read_limits(path: Path | None) -> Limits | None:
    """Read section `flow` of a file of limits: some of its keys, with a valid value each.

    Raises ConfigError. It does not check if the values fit together with all others.
    """
    if path is None:
        return None
    tables = _read(path)
    for name in tables:
        if name not in (LIMITS, EVIDENCE):
            raise ConfigError(f"{name}: a file of limits has [flow] and [evidence] only ({path})")
    if LIMITS not in tables:
        raise ConfigError(f"flow: is missing: a file of limits has a section [flow] ({path})")
    values = tables[LIMITS]
    try:
        FlowSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_complaints(error, LIMITS, f" ({path})")) from error
    assert isinstance(values, dict)
    return Limits(path, values)


def with_limits(settings: Settings, limits: Limits) -> FlowSettings:
    """Section `flow` of `settings`, overridden by `limits`; raises ConfigError."""
    values = settings.model_dump(exclude_unset=True)
    values.setdefault(LIMITS, {}).update(limits.values)
    return settings_of(values).flow


def _read_settings(config: Path) -> Values:
    """Read a file of settings; its relative paths begin at its folder. Raises ConfigError."""

    def place(text: str) -> str:
        path = config.parent.absolute() / text
        if not path.exists() and Path(text).is_file():
            raise ConfigError(
                f"{path} does not exist, but {text} does: relative paths in {config} begin at its "
                f"folder; write {os.path.relpath(text, config.parent)} or {Path(text).absolute()}"
            )
        return str(path)

    values = with_paths(Settings, _read(config), place)
    assert isinstance(values, dict)
    return values


def _read(path: Path) -> Values:
    try:
        return tomllib.loads(read(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _table(values: Values, section: str, wanted_by: str) -> Values:
    table = values.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{section}: must be a table, because {wanted_by} sets something in it")
    return table


def _keys_in(values: Values) -> list[str]:
    tables = {section: table for section, table in values.items() if isinstance(table, dict)}
    return [f"{section}.{key}" for section, table in tables.items() for key in table]


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Return settings with these values; raises ConfigError, with a line for each error."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_complaints(error)) from error


def _complaints(error: ValidationError, section: str = "", where: str = "") -> str:
    """Return a line for each error; `section`: that of the values, `where`: a text to add."""
    above = (section,) if section else ()
    return "\n".join(
        _complaint((*above, *map(str, item["loc"])), item) + where for item in error.errors()
    )


def _complaint(path: tuple[str, ...], error: ErrorDetails) -> str:
    is_deeper = len(path) > len(("section", "key"))
    if error["type"] != "extra_forbidden" or is_deeper:
        return f"{'.'.join(path) or 'settings'}: {complaint(Settings, error)}"
    near = get_close_matches(".".join(path), _keys())
    hint = f"did you mean {' or '.join(near[:2])}?" if near else "flowguard settings lists them"
    return f"{'.'.join(path)}: unknown setting; {hint}"


def _keys() -> list[str]:
    return [
        f"{name}.{key}" for name, section in _sections().items() for key in section.model_fields
    ]


def _sections() -> dict[str, type[Section]]:
    sections = {}
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        sections[name] = section
    return sections


def settings(
    config: Annotated[
        Path | None, typer.Option(help="As `serve --config`: show what it sets.")
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="As `serve --limits`: show what it sets.")
    ] = None,
) -> None:
    """Print all settings with meanings and defaults, as TOML.

    It is a file for `serve --config`. Defaults are comments. A value from a file or a variable is
    set, and its source follows it.
    """
    try:
        loaded = load(config, os.environ, read_limits(limits))
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    sys.stdout.write(settings_toml(loaded))


def settings_toml(loaded: LoadedSettings | None = None) -> str:
    """Return all settings with their meanings, as a valid TOML file; defaults are comments."""
    lines = ["# flowguard serve --config FILE; every line here shows a default."]
    if loaded is not None and loaded.origins:
        lines = ["# flowguard serve --config FILE; what is a comment has its default."]
    for title, section in _sections().items():
        lines += ["", f"[{title}]"]
        said = meanings(section)
        for name, item in section.model_fields.items():
            lines += [f"# {line}" for line in said[name].splitlines()]
            origin = None if loaded is None else loaded.origins.get(f"{title}.{name}")
            if loaded is not None and origin is not None:
                value = loaded.settings.model_dump(mode="json")[title][name]
                lines.append(f"{name} = {toml_value(value)}  # {origin}")
            elif item.default is None:
                lines.append(f"# {name} is absent")
            else:
                lines.append(f"# {name} = {json.dumps(item.default, default=str)}")
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return a value as TOML writes it in one line."""
    if isinstance(value, dict):
        items = [f"{key} = {toml_value(item)}" for key, item in value.items() if item is not None]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
