"""Section: the base of all tables of settings, and texts for errors in a table."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

WORDS: Final = {
    "model_type": "a table is expected",
    "model_attributes_type": "a table is expected",
    "dict_type": "a table is expected",
    "tuple_type": "a list is expected",
    "list_type": "a list is expected",
    "string_type": "a text is expected",
    "path_type": "a path is expected, as a text",
    "int_type": "a whole number is expected",
    "int_parsing": "a whole number is expected",
    "int_from_float": "a whole number is expected",
    "float_type": "a number is expected",
    "float_parsing": "a number is expected",
    "bool_type": "true or false is expected",
    "bool_parsing": "true or false is expected",
    "missing": "is missing",
}
"""TOML's words for types that pydantic names after types of Python, by kind of the error."""
OWN: Final = "Value error, "
"""Prefix that pydantic puts before our own messages."""


def _split(values: object) -> object:
    return values.replace(",", " ").split() if isinstance(values, str) else values


LISTED: Final = BeforeValidator(_split)
"""Accepts several values in one text, as in an environment variable: `a:1883,mqtts://b:8883`."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: object, info: ValidationInfo) -> object:
        """Reject booleans for numbers, because Python would take true for 1."""
        if isinstance(value, bool):
            annotation = cls.model_fields[str(info.field_name)].annotation
            if {int, float} & {annotation, *get_args(annotation)}:
                raise ValueError("a number is expected, and not true or false")
        return value


def complaint(root: type[BaseModel], error: ErrorDetails) -> str:
    """Return the problem of a value below a table of type `root`, without its path."""
    kind = error["type"]
    if kind != "extra_forbidden":
        return WORDS.get(kind, error["msg"].removeprefix(OWN))
    *above, wrong = error["loc"]
    known = keys_below(root, above)
    near = get_close_matches(str(wrong), known)
    hint = f"did you mean {' or '.join(near[:2])}?" if near else f"known are {', '.join(known)}"
    return f"unknown key; {hint}"


def with_paths(form: Any, value: object, place: Callable[[str], str]) -> object:
    """Return an unchecked value of type `form` with each path in it replaced by its `place`."""
    form = _form_of(form)
    if form is Path and isinstance(value, str):
        return place(value)
    if get_origin(form) is tuple and isinstance(value, list):
        return [with_paths(get_args(form)[0], each, place) for each in value]
    if isinstance(form, type) and issubclass(form, BaseModel) and isinstance(value, dict):
        forms = {name: field.annotation for name, field in form.model_fields.items()}
        return {key: with_paths(forms.get(key), each, place) for key, each in value.items()}
    return value


def keys_below(root: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the keys of the table at `path` below a table of type `root`; [] if it is no table."""
    form: Any = root
    for part in path:
        form = _form_of(form)
        if isinstance(form, type) and issubclass(form, BaseModel):
            fields = {field.alias or name: field for name, field in form.model_fields.items()}
            form = fields[part].annotation if part in fields else None
        else:
            form = next((each for each in reversed(get_args(form)) if each is not ...), None)
    form = _form_of(form)
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        return []
    return [field.alias or name for name, field in form.model_fields.items()]


def _form_of(form: Any) -> Any:
    """Return the type without None, if a value may be absent."""
    some = [each for each in get_args(form) if each is not NoneType]
    is_optional = NoneType in get_args(form) and get_origin(form) not in (tuple, dict, list)
    return some[0] if is_optional else form


def meanings(section: type[Section]) -> dict[str, str]:
    """Return the text below each key of a section in the source, by key.

    Pydantic can keep these texts (use_attribute_docstrings), but then parses the source at every
    start of a program; hardly any program shows them.
    """
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for key, text in zip(tree.body, tree.body[1:], strict=False):
        match key, text:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                texts[name] = inspect.cleandoc(said)
    return texts
