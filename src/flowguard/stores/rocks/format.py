"""The format record, which marks a directory as a store, and the note of the process that has it.

The record is one line of text, so that any tool can read it:

    flowguard-rocks 1.0 window 0.1.0 feature,feature

A store with the same major version and known features is opened, with any minor version; others
are rejected.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from flowguard import __version__
from flowguard.errors import FormatError, LockedError, StoreError
from flowguard.stores.rocks.database.engine import FAMILIES, RocksEngine, families_in, is_slice
from flowguard.stores.rocks.layouts.keys import FORMAT_KEY

NAME: Final = "flowguard-rocks"
MAJOR: Final = 1
MINOR: Final = 0
LOG: Final = "log"
"""The feature of a directory that has generations of the durable log."""
FEATURES: Final = frozenset({LOG})
"""Features of this version; a store with other ones must not be opened."""
HOLDER: Final = "holder"
UNBORN: Final = re.compile(
    r"holder|copy|synced|lost\+found|LOCK|LOG.*|IDENTITY|MANIFEST-.*|OPTIONS-.*|.*\.dbtmp|.*\.log"
    r"|rocksdict-config\.json"
)
"""Names of files of a database whose creation was not finished."""


def check_folder(folder: Path) -> None:
    """Create `folder` if it is missing.

    Raises `FormatError` if it is no flowguard store, `StoreError` if it may not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FormatError(f"{folder} cannot be a store: {error.strerror}") from error
    for path in (folder, folder / "LOCK"):
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreError(
                f"{path} may not be written by this process; make it writable, "
                "or use another folder"
            )
    if "CURRENT" in names:
        strangers = sorted(
            name for name in families_in(folder) if name not in FAMILIES and not is_slice(name)
        )
        if strangers:
            raise FormatError(
                f"{folder} is a RocksDB database of some other program (it has {strangers[0]!r}); "
                "give flowguard a folder of its own"
            )
        return
    others = [name for name in names if not UNBORN.fullmatch(name)]
    if others:
        raise FormatError(
            f"{folder} holds something that is no store (such as {others[0]!r}); "
            "give flowguard a folder of its own"
        )


@dataclass(frozen=True, slots=True)
class Format:
    version: str
    layout: str
    creator: str
    """The version of flowguard that created the directory."""


def read_record(engine: RocksEngine, folder: Path) -> Format:
    """Return the format record. Raises `FormatError` if this version cannot read the directory."""
    record = engine.meta.get(FORMAT_KEY)
    if record is None:
        raise FormatError(f"{folder} has no format record: it is no store, or was never finished")
    return _parsed(record, folder)


def check_record(engine: RocksEngine, folder: Path, layout: str) -> bytes | None:
    """Return the record to be written if the directory is new, else None. Raises `FormatError`."""
    record = engine.meta.get(FORMAT_KEY)
    if record is None:
        if not engine.is_empty:
            raise FormatError(f"{folder} holds data without a format record; restore a backup")
        return f"{NAME} {MAJOR}.{MINOR} {layout} {__version__} ".encode()
    found = _parsed(record, folder)
    if found.layout != layout:
        raise FormatError(
            f"{folder} has layout {found.layout!r}, the setting store.layout says {layout!r}; "
            f"set it to {found.layout!r}, or start in a new folder"
        )
    return None


def with_feature(record: bytes, feature: str) -> bytes:
    """Return the record with another `feature`, so that older versions reject the directory."""
    head, _, features = record.decode().rpartition(" ")
    return f"{head} {','.join(sorted({*filter(None, features.split(',')), feature}))}".encode()


def _parsed(record: bytes, folder: Path) -> Format:
    fields = record.decode(errors="replace").split(" ")
    if len(fields) != 5 or fields[0] != NAME:
        raise FormatError(f"{folder} was written by something else: {record[:80]!r}")
    _, version, layout, creator, features = fields
    if version.partition(".")[0] != str(MAJOR):
        raise FormatError(
            f"{folder} has format {version}, written by flowguard {creator}; this is flowguard "
            f"{__version__} with format {MAJOR}.{MINOR}: run that version, or start in a new folder"
        )
    unknown = sorted(set(filter(None, features.split(","))) - FEATURES)
    if unknown:
        raise FormatError(
            f"{folder} uses {', '.join(unknown)}, which flowguard {__version__} does not know; "
            f"run flowguard {creator} or later"
        )
    return Format(version, layout, creator)


def hold(folder: Path, now_s: float) -> None:
    """Note the process that has the directory open; RocksDB has the lock itself."""
    since = datetime.fromtimestamp(now_s, UTC).isoformat(" ", "seconds")
    with suppress(OSError):  # The store must open even if the disk is full.
        (folder / HOLDER).write_text(f"process {os.getpid()} since {since}\n")


def let_go(folder: Path) -> None:
    with suppress(OSError):
        (folder / HOLDER).unlink(missing_ok=True)


def holder_pid(folder: Path) -> int | None:
    """Return the process that has the directory open according to its note, or None."""
    with suppress(OSError, ValueError, IndexError):
        return int((folder / HOLDER).read_text().split()[1])
    return None


def locked(folder: Path) -> LockedError:
    """Return an error that names the process that has the directory open."""
    try:
        holder = (folder / HOLDER).read_text().strip()
    except OSError:
        holder = ""
    return LockedError(
        f"{folder} is open in {holder or 'another process'}",
        "; stop that one, or use another folder",
    )
