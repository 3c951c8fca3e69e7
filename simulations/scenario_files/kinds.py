"""Kinds: checks that a value is written as its key demands: as a number, or as true or false.

Pydantic takes true for 1, "50" for 50 and "yes" for true, which the author of the file did not
mean.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

Kind = Literal["int", "float", "bool"]
NO_KIND: Final[Mapping[Kind, str]] = {
    "int": "no whole number",
    "float": "no number",
    "bool": "neither true nor false",
}
"""Words for an error message by the expected kind."""


def wrong_kind(annotation: Any, value: Any) -> Kind | None:
    """Return the kind that the value should have, or None if it has it or its key has no kind.

    A whole number is also a number, and 5e4 may be a whole one.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return wrong_kind(inner[0], value)
    if origin in (Union, UnionType):
        return _wrong_for_all([part for part in inner if part is not NoneType], value)
    if origin is tuple and isinstance(value, list | tuple):
        found = (wrong_kind(inner[0], part) for part in value)
        return next((kind for kind in found if kind is not None), None)
    if annotation is bool:
        return None if value is None or isinstance(value, bool) else "bool"
    if annotation in (int, float) and isinstance(value, bool | str):
        return "int" if annotation is int else "float"
    return None


def _wrong_for_all(parts: list[Any], value: Any) -> Kind | None:
    found = [wrong_kind(part, value) for part in parts]
    return None if None in found else found[0]
