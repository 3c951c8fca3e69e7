"""Converts errors of RocksDB, for which rocksdict has only one exception class."""

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
"""The content of the families of the durable log, which are numbered."""

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
"""Errors that RocksDB repeats for every change until the database is reopened."""


@contextmanager
def translated(family: str = "") -> Iterator[None]:
    """Translate rocksdict's errors by their text.

    `family` is the family that is read; any other error of a read becomes `CorruptionError`.
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
