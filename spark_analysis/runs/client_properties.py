"""Client properties: how a Kafka is read, in a file as Kafka's own tools take it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spark_analysis.terminal import wrong_argument

_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])+)[ \t\f]*[=: \t\f][ \t\f]*(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_CONTROLS: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def client_properties(path: Path) -> dict[str, str]:
    """Read lines KEY=VALUE, with `#` before comments.

    A backslash goes before a literal character, or before the end of a line that continues. The
    file is in ISO 8859-1, other characters are as `\\u20ac`. Raises JobFailed, unlike Java
    also if a key or its sign is missing.
    """
    try:
        text = path.read_text(encoding="iso-8859-1")
    except OSError as failure:
        raise wrong_argument(f"Cannot read {path}: {failure}") from failure
    found: dict[str, str] = {}
    for number, line in _lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is None:
            why = f"{path}, line {number}: expected KEY=VALUE, as security.protocol=SASL_SSL"
            raise wrong_argument(why)
        key, value = (_ESCAPED.sub(_meant, part) for part in pair.groups())
        found[key] = value
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something, each with those that it goes on in, and the number of its first."""
    lines = enumerate(_LINE_ENDS.split(text), start=1)
    for number, line in lines:
        whole = line.lstrip(_BLANKS)
        if whole and whole[0] not in "#!":
            while (len(whole) - len(whole.rstrip("\\"))) % 2:
                _, following = next(lines, (number, ""))
                whole = whole[:-1] + following.lstrip(_BLANKS)
            yield number, whole


def _meant(escaped: re.Match[str]) -> str:
    code, char = escaped.groups()
    return chr(int(code, 16)) if code else _CONTROLS.get(char, char)
