"""Clock: the time of a broker in this process."""

from flowguard.broker import server

PAUSE_S = 3_600.0


class Clock:
    """The time of a broker, which a test may set forward."""

    def __init__(self) -> None:
        self._unix = server.unix_clock()
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return self._unix() + self._ahead_s

    def jump(self, seconds: float = PAUSE_S) -> None:
        self._ahead_s += seconds
