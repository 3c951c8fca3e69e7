"""Files and folders that survive a crash of the machine."""

import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """Write a file and sync it."""
    path.write_text(text)
    sync(path)


def replace_durably(path: Path, text: str) -> None:
    """Replace a file; a crash leaves the old or the new one."""
    new = path.with_suffix(".new")
    write_durably(new, text)
    new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the list of files of a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
