"""The clock of a broker: read twenty times for a message that comes alone, so it is compiled."""

from collections.abc import Callable
from time import monotonic, time


def unix_clock() -> Callable[[], float]:
    """Seconds since the Unix epoch that never go backwards within this process."""
    offset_s = time() - monotonic()

    def now_s() -> float:
        return monotonic() + offset_s

    return now_s
