"""Copies of a whole directory: complete under their name, or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flowguard.errors import StoreError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.stores.rocks.identity import COPY, mark_as_copy

IMMUTABLE: Final = frozenset({".sst", ".blob"})
"""Files that RocksDB never changes after they are written: a copy can share them."""
LEFT_OUT: Final = ("LOCK", "LOG", "holder", COPY, OWNER_FILE)
"""Prefixes of names of files that are about this folder, not about data."""


@contextmanager
def published(folder: Path, *sources: Path) -> Iterator[Path]:
    """A temporary path to write a new `folder` at; it gets its name at the end, or is removed.

    Only its owner may read it. Raises `StoreError` where `folder` is there already, or lies
    in one of `sources`: a folder inside a store belongs to the store.
    """
    if folder.exists():
        raise StoreError(f"{folder} exists; it must be a new folder")
    for above in Path(os.path.realpath(folder)).parents:
        for source in sources:
            if above.exists() and above.samefile(source):
                raise StoreError(f"{folder} lies in {source}, the store's own; name one beside it")
    room = folder.with_name(f"{folder.name}.unfinished")
    unfinished = room / folder.name
    try:
        room.mkdir(mode=0o700)
    except FileExistsError as error:
        raise StoreError(f"{room} exists: remove what is left of an earlier attempt") from error
    try:
        yield unfinished
        unfinished.chmod(0o700)
        _sync_folder(unfinished)
        unfinished.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(room)


def copy_files(source: Path, target: Path) -> None:
    """Make a new folder `target` with the files of a database that nobody has open; synced.

    Files are hard links where they can be shared, and where both folders are on one file system.
    """
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.name.startswith(LEFT_OUT) or not path.is_file():
            continue
        copy = target / path.name
        if path.suffix in IMMUTABLE:
            try:
                os.link(path, copy)
                continue
            except OSError:
                pass  # Another file system, or one without hard links.
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())


def back_up_files(source: Path, folder: Path) -> None:
    """Back up a store that nobody has open. Raises `StoreError`."""
    try:
        with published(folder, source) as unfinished:
            copy_files(source, unfinished)
            mark_as_copy(unfinished, source)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be written: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
