"""Writing: a scenario's table as a TOML file with comments."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

DIGITS: Final = 7
WIDTH: Final = 96
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def scenario_toml(table: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    lines = [f"# {line}" for text in comments for line in wrap(text, WIDTH)]
    return "\n".join([*lines, *_lines(table, "")]) + "\n"


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lists = {key: value for key, value in table.items() if _is_of_tables(value)}
    for key, value in table.items():
        if key not in inner and key not in lists:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        below = f"{path}.{_key(key)}" if path else _key(key)
        if value:
            yield ""
            yield f"[{below}]"
            yield from _lines(value, below)
    for key, values in lists.items():
        for value in values:
            yield ""
            yield f"[[{path}.{_key(key)}]]" if path else f"[[{_key(key)}]]"
            yield from _lines(value, key)


def _is_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value)
