"""Copies of a whole directory, which get their name when they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowguard.errors import StoreError
from flowguard.stores.durable_files import sync


@contextmanager
def published(folder: Path, *sources: Path) -> Iterator[Path]:
    """Yield a temporary path for a new `folder`; at the end it is renamed to `folder`, or removed.

    Only its owner may read it. Raises `StoreError` if `folder` exists, or is in one of `sources`:
    a folder inside a store belongs to the store.
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
