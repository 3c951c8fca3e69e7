"""Settings from a TOML file and `FLOWGUARD_...` variables, with errors that name the key."""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flowguard.config import Settings
from flowguard.errors import ConfigError

PREFIX = "FLOWGUARD_"
SEPARATOR = "__"


def load_settings(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Defaults, overridden by the file, overridden by `FLOWGUARD_FLOW__WINDOW_MAX=50` and its like.

    Raises ConfigError naming the file or variable, the key, and what is wrong with it.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for name, text in sorted(environ.items()):
        section, separator, key = name.removeprefix(PREFIX).lower().partition(SEPARATOR)
        if name.startswith(PREFIX) and separator:
            table = values.setdefault(section, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{section} in {path} must be a table, because {name} is set")
            table[key] = text
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [_complaint(tuple(map(str, item["loc"])), item) for item in error.errors()]
        raise ConfigError("\n".join(lines)) from error


def _complaint(path: tuple[str, ...], error: ErrorDetails) -> str:
    if error["type"] != "extra_forbidden":
        return f"{'.'.join(path) or 'settings'}: {error['msg']}"
    near = get_close_matches(".".join(path), _keys())
    hint = f"did you mean {' or '.join(near[:2])}?" if near else "flowguard settings lists them"
    return f"{'.'.join(path)}: unknown setting; {hint}"


def _keys() -> list[str]:
    sections = {name: field.annotation for name, field in Settings.model_fields.items()}
    return [
        f"{section}.{key}"
        for section, model in sections.items()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for key in model.model_fields
    ]


def settings() -> None:
    """Print every setting with its unit and default, as a TOML file for `serve --config`."""
    sys.stdout.write(settings_toml())


def settings_toml() -> str:
    """All settings, commented out, each with its meaning; a valid TOML file."""
    lines = ["# flowguard serve --config FILE; every line here shows a default."]
    for section, field in Settings.model_fields.items():
        model = field.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        lines += ["", f"[{section}]"]
        for name, item in model.model_fields.items():
            assert item.description is not None
            lines += [f"# {line}" for line in item.description.splitlines()]
            if item.default is None:
                lines.append(f"# {name} is absent")
            else:
                lines.append(f"# {name} = {json.dumps(item.default)}")
    return "\n".join(lines) + "\n"


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT`; raises ConfigError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{text}: expected HOST:PORT, for example 127.0.0.1:1883")
    return host, int(port)
