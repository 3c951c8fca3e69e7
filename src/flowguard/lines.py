"""Lines of text: files as Mosquitto reads them, and counts with their nouns.

A line ends with LF or CRLF. `str.splitlines` and `str.strip` accept many more characters. With
these, the rest of a comment could become a rule, or one user another.
"""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from pathlib import Path
from typing import Final

from flowguard.errors import ConfigError

BLANKS: Final = " \t\r\v\f"
"""Characters that are ignored at the ends of a line."""


def read(path: Path) -> bytes:
    """Return the content of a file; raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def text_of(data: bytes, name: str) -> str:
    """Return the text of a file called `name`; raises ConfigError."""
    if data.startswith((BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE)):
        raise ConfigError(f"{name} begins with a byte order mark: save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{name}, line {number}: byte 0x{data[error.start]:02X} is not UTF-8, perhaps Latin-1: "
            "save the file as UTF-8"
        ) from error


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, without blanks at their ends."""
    return [line.rstrip(BLANKS) for line in text.split("\n")]


def count(number: int, one: str) -> str:
    """Return "1 listener" or "1,200 listeners"; the noun ends at " with "."""
    noun, space, rest = one.partition(" with ")
    return f"{number:,} {noun}" + ("" if number == 1 else "s") + space + rest
