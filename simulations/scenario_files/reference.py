"""Reference: every key of a scenario file with meaning, unit and default, as a TOML file."""

import json
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flowguard.config import FlowSettings
from simulations.scenario import Scenario
from simulations.scenario_files.complaints import model_of

NAME = "NAME"
"""Placeholder for the name of a population."""


def keys_toml() -> str:
    """All keys, commented out; a valid TOML file, and a valid scenario."""
    lines = ["# A scenario file; every line here shows a default.", ""]
    lines += _table(Scenario, "")
    return "\n".join(lines) + "\n"


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    inner = {name: model_of(field.annotation) for name, field in model.model_fields.items()}
    for name, field in model.model_fields.items():
        if inner[name] is None:
            yield from _key(name, field)
    for name, part in inner.items():
        if part is None:
            continue
        field = model.model_fields[name]
        path = f"{prefix}{name}"
        yield ""
        yield _header(path, field)
        if part is FlowSettings:
            yield "# Section [flow] of the nodes: see `flowguard settings`; --policy sets `policy`."
            continue
        yield from _comment(field.description or part.__doc__)
        yield "#"
        dotted = f"{path}.{NAME}." if get_origin(field.annotation) is dict else f"{path}."
        yield from _table(part, dotted)


def _header(path: str, field: FieldInfo) -> str:
    """Return the header of a table as a comment, because an empty table differs from none."""
    match get_origin(field.annotation):
        case kind if kind is dict:
            return f"# [{path}.{NAME}]"
        case kind if kind is tuple:
            return f"# [[{path}]]"
    return f"# [{path}]"


def _key(name: str, field: FieldInfo) -> Iterator[str]:
    yield from _comment(field.description)
    if get_origin(field.annotation) is Literal:
        yield f"# One of {', '.join(get_args(field.annotation))}."
    if field.is_required():
        yield f"# {name} must be given"
    elif field.default is None:
        yield f"# {name} is absent"
    else:
        yield f"# {name} = {json.dumps(field.default)}"


def _comment(text: str | None) -> Iterator[str]:
    assert text is not None
    for line in text.splitlines():
        yield f"# {line.strip()}"
