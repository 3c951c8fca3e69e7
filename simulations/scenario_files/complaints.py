"""Complaints: the error of a scenario as one line that names the key."""

from collections.abc import Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flowguard.errors import ConfigError
from simulations.scenario_files.kinds import NO_KIND

Path = Sequence[str | int]

_WORDS: Final = {
    "greater_than_equal": "{input} is less than {ge}",
    "greater_than": "{input} is not more than {gt}",
    "less_than_equal": "{input} is more than {le}",
    "less_than": "{input} is not less than {lt}",
    "literal_error": "{input!r} is none of {expected}",
    "missing": "is missing",
    "missing_argument": "is missing",
    "too_short": "there is none",
    "value_error": "{error}",
}
_KINDS: Final[dict[str, str]] = {
    **{kind: f"{{input!r}} is {words}" for kind, words in NO_KIND.items()},
    "finite": "{input!r} is no number",
    "string": "{input!r} is no text",
    "model": "{input!r} is no table",
    "dict": "{input!r} is no table",
    "tuple": "{input!r} is no list",
}
"""Messages by the first word of pydantic's error type."""


def refusal(
    where: object,
    error: ValidationError,
    model: type[BaseModel],
    *,
    inside: str = "",
    unknown: str = "see --keys, and --list for parameters",
) -> ConfigError:
    """Return an error of one line, with the file, and the key and fault of the first error.

    `inside` is the key of the table that `model` describes; `unknown` is the message for an unknown
    key that is like no other.
    """
    first, others_count = _first(error)
    path = first["loc"]
    key, kind = dotted([inside, *path] if inside else path), first["type"]
    if kind == "extra_forbidden":
        words = "unknown key" + (
            nearest(str(path[-1]), _keys_at(model, path[:-1])) or f"; {unknown}"
        )
    else:
        form = _WORDS.get(kind) or _KINDS.get(kind.partition("_")[0])
        context = {**first.get("ctx", {}), "input": first["input"]}
        words = first["msg"] if form is None else form.format_map(context)
    if others_count:
        words += f" (and {others_count} more)"
    return ConfigError(f"{where}: {key}: {words}" if key else f"{where}: {words}")


def _first(error: ValidationError) -> tuple[ErrorDetails, int]:
    """The error to report, and the number of others; for a missing key an unknown one, which may be
    misspelt."""
    errors = error.errors()
    first = errors[0]
    beside = [
        other
        for other in errors
        if other["type"] == "extra_forbidden" and other["loc"][:-1] == first["loc"][:-1]
    ]
    return beside[0] if beside and first["type"] == "missing" else first, len(errors) - 1


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean ...?`, or "" if no known name is similar."""
    near = get_close_matches(name, known, 2, 0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The record in an annotation: itself, of a table of them, of a list, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, tuple, list, Union, UnionType):
        found = [model_of(part) for part in get_args(annotation)]
        return next((model for model in found if model is not None), None)
    return None


def _keys_at(model: type[BaseModel], path: Path) -> list[str]:
    for part in path:
        field = model.model_fields.get(str(part))
        inner = None if field is None else model_of(field.annotation)
        model = inner or model  # The name of a population, or the number of a fault.
    return list(model.model_fields)
