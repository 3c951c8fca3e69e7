"""File descriptors: a resource like any other, of which clients get what nothing else needs.

A process that has none left cannot open a table of its store, answer HTTP or take a backup; so
accepting stops before. Nothing is counted while the broker runs but its own connections: what else
is open is looked at once, at the start, and what may be opened later is reserved.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flowguard.config import Settings
from flowguard.errors import ConfigError

OPEN_FILES = Path("/proc/self/fd")


@final
@dataclass(frozen=True, slots=True)
class Descriptors:
    """What there is of them, and who has it."""

    limit: int
    """What this process may have open."""
    used: int
    """What it has open without any client."""
    reserve: int
    """What it may come to need."""

    @property
    def places(self) -> int:
        """Connections that there is room for."""
        return self.limit - self.used - self.reserve


def descriptors_for(settings: Settings, *, on_disk: bool) -> Descriptors:
    """Those of this process, as of now; `on_disk`: its store opens files.

    Raises `ConfigError` where no client would find room.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir(OPEN_FILES))
    of_store = settings.store.open_files_max if on_disk else 0
    found = Descriptors(limit, used, settings.node.descriptors_reserve + of_store)
    if found.places <= 0:
        wanted = "node.descriptors_reserve" + (" and store.open_files_max" if on_disk else "")
        raise ConfigError(
            f"this process may open {limit:,} files, has {used:,} open and keeps {found.reserve:,} "
            f"for itself ({wanted}): no client would find room. "
            f"Raise the limit (ulimit -n), or lower {wanted}"
        )
    return found
