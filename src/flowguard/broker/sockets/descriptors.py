"""File descriptors: a resource like any other, of which clients get what nothing else needs.

A process that has none left cannot open a table of its store, answer HTTP or take a backup; so
accepting stops before. Only the broker's own connections are counted while it runs: other open
descriptors are counted once, at the start, and those that may be opened later are reserved.
"""

import fcntl
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flowguard.bounds import Bounds
from flowguard.config import Settings
from flowguard.errors import UnreadyError

OPEN_FILES = Path("/proc/self/fd")


@final
@dataclass(frozen=True, slots=True)
class Descriptors:
    """The descriptors of a process, and their uses."""

    limit: int
    """Descriptors that this process may have open."""
    used: int
    """Descriptors open without any client."""
    reserve: int
    """Descriptors that it may come to need besides clients."""

    @property
    def places(self) -> int:
        """Connections that there are descriptors for."""
        return self.limit - self.used - self.reserve


def descriptors_for(settings: Settings, *, on_disk: bool) -> Descriptors:
    """Count the descriptors of this process now; `on_disk`: its store opens files.

    Raises `UnreadyError` if none would be left for clients.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir(OPEN_FILES))
    of_store = settings.store.open_files_max if on_disk else 0
    found = Descriptors(limit, used, settings.node.descriptors_reserve + of_store)
    if found.places <= 0:
        wanted = "node.descriptors_reserve" + (" and store.open_files_max" if on_disk else "")
        raise UnreadyError(
            f"this process may open {limit:,} files, has {used:,} open and keeps {found.reserve:,} "
            f"for itself ({wanted}): there is none left for a client. "
            f"Raise the limit (ulimit -n), or lower {wanted}"
        )
    return found


def places_for(bounds: Bounds, descriptors: Descriptors) -> int:
    """Clients that may be connected at once: the number in force."""
    return min(bounds.connections_max, descriptors.places)


def shortfalls(bounds: Bounds, descriptors: Descriptors) -> list[str]:
    """Return a sentence for each configured capacity that cannot be provided."""
    asked = bounds.asked
    places = places_for(bounds, descriptors)
    by = "ulimit -n" if places == descriptors.places else "node.connections_max"
    wanted = [("node.connections_max", asked.node.connections_max)]
    wanted += [(each.address, each.connections_max) for each in asked.network.listeners]
    return [
        f"{key} allows {count:,} clients, but only {places:,} can connect at once: raise {by}"
        for key, count in wanted
        if count is not None and count > places
    ]


def widen_table(count: int) -> None:
    """Grow the kernel's table of this process's descriptors to `count` entries, if allowed.

    The kernel doubles the table on demand. In a process with threads, each growth waits until no
    processor uses the old table. This takes 5 to 80 ms in an `accept`, several times while many
    clients connect
    (`expand_fdtable` and `synchronize_rcu` in Linux).
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = min(count, limit) - 1
    lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if highest > lowest:
            os.close(fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, highest))
    except OSError:
        pass  # It is open already, or memory is short: the table grows on demand.
    finally:
        os.close(lowest)
