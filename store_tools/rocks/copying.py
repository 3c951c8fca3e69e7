"""Copies of a store that no broker has open."""

import os
import shutil
from pathlib import Path
from typing import Final

from flowguard.errors import StoreError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.stores.durable_files import sync
from flowguard.stores.rocks.copying import published
from flowguard.stores.rocks.identity import COPY, mark_as_copy

IMMUTABLE: Final = frozenset({".sst", ".blob"})
"""Suffixes of files that RocksDB never changes after writing them, so that a copy can share them.
"""
LEFT_OUT: Final = ("LOCK", "LOG", "holder", COPY, OWNER_FILE)
"""Prefixes of names of files that belong to this folder, not to its data."""


def copy_files(source: Path, target: Path) -> None:
    """Copy the files of a closed database to a new folder `target`, and sync them.

    Files that can be shared are hard links if both folders are on one file system.
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
        sync(copy)


def back_up_files(source: Path, folder: Path) -> None:
    """Back up a closed store. Raises `StoreError`."""
    try:
        with published(folder, source) as unfinished:
            copy_files(source, unfinished)
            mark_as_copy(unfinished, source)
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be written: {error.strerror}") from error
