"""RocksDB's errors translated: rocksdict has one exception for all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flowguard.errors import (
    CorruptionError,
    DescriptorsError,
    LockedError,
    NoSpaceError,
    StallError,
    StoreError,
)

CONTENT: Final = {
    "default": "format and counters",
    "q": "queued messages",
    "p": "shared messages",
    "s": "sessions",
    "r": "retained messages",
}
"""Contents of the database's families, for people."""
LOGGED: Final = "logged messages"
"""The content of the families of the durable log, which have numbers."""

_SIGNS: Final[tuple[tuple[str, type[StoreError]], ...]] = (
    ("Write stall", StallError),
    ("No space left", NoSpaceError),
    ("Disk quota exceeded", NoSpaceError),
    ("File too large", NoSpaceError),
    ("/LOCK: ", LockedError),
    ("Too many open files", DescriptorsError),
)
"""Parts of RocksDB's messages, and the errors they mean."""
REPEATED: Final = (NoSpaceError, DescriptorsError)
"""Errors of a change that it repeats for every other one until it is opened again."""


@contextmanager
def translated(family: str = "") -> Iterator[None]:
    """Translate rocksdict's errors into ours, by their text.

    `family`: its rows are read; if they cannot be read they are damaged, whatever the reason.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        text = str(error)
        for sign, kind in _SIGNS:
            if sign in text:
                raise kind(text) from error
        if family:
            raise CorruptionError(
                f"{CONTENT.get(family, LOGGED)} cannot be read: {text}"
            ) from error
        kind = CorruptionError if "Corruption" in text else StoreError
        raise kind(text) from error
