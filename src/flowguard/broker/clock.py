"""The clock of a broker, compiled because a single message reads it twenty times."""

from collections.abc import Callable
from time import monotonic, time


def unix_clock() -> Callable[[], float]:
    """Return a clock: seconds since the Unix epoch that never go backwards in this process."""
    offset_s = time() - monotonic()

    def now_s() -> float:
        return monotonic() + offset_s

    return now_s
