"""Files of results; the commands check that they can be written before any work begins."""

import os
import sys
from pathlib import Path
from typing import Final

from flowguard.cli.console import refused
from flowguard.errors import ConfigError

STDOUT: Final = Path("-")


def require_writable(*paths: Path | None) -> None:
    """Raise ConfigError for a file that cannot be written, but not for None or `STDOUT`."""
    for path in paths:
        if path is None or path == STDOUT:
            continue
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a directory")
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no directory {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"cannot write {path}: permission denied")


def write(path: Path | None, text: str) -> None:
    """Write a result, unless `path` is None. Exit with an error if that fails, as on a full
    disk."""
    if path is None:
        return
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise refused(f"cannot write {path}: {error.strerror}") from error
