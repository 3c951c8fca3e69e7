"""TimeShare: one kind of work gets as much of the loop as all other work took since its last turn.

A limit on how many are served at once is no schedule. Serving a CONNECT may take as long as a
hundred packets do: sixteen of them in one stretch keep every packet waiting, and no window can
relieve that. So CONNECTs, and handshakes of TLS, take turns with all else by time.
"""

from typing import Final, final

MOST_S: Final = 0.05
"""The longest turn, however long the loop did other work, seconds."""


@final
class TimeShare:
    """The turns of one kind of work, which is done piece by piece: the last one may overdraw."""

    __slots__ = ("_began_s", "_debt_s", "_due_s", "_least_s", "_took_s")

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        """The shortest turn: no work waits for ever, however little else there is to do."""
        self._began_s = 0.0
        self._took_s = 0.0
        self._due_s = 0.0
        self._debt_s = 0.0
        """Time that the last turn took beyond what was due."""

    def begin(self, now_s: float) -> float:
        """A turn begins: return how long it may take; `end` follows."""
        others_s = max(0.0, now_s - self._began_s - self._took_s)
        self._began_s = now_s
        self._due_s = min(MOST_S, max(self._least_s, others_s - self._debt_s))
        return self._due_s

    def end(self, took_s: float) -> None:
        self._took_s = took_s
        self._debt_s = max(0.0, took_s - self._due_s)
