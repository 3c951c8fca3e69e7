"""Copies of a whole directory: complete under their name, or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowguard.errors import StoreError
from flowguard.stores.durable_files import sync


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
        sync(unfinished)
        unfinished.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(room)
