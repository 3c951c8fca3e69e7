"""Door: whether new sockets are accepted, for whoever shows it; the driver of a node writes it."""

from enum import StrEnum
from typing import Final, final


class Rest(StrEnum):
    """Why a listener rests: who comes then waits in the kernel's backlog."""

    DESCRIPTORS = "descriptors"
    """There is no place for one more socket."""
    PRESSURE = "pressure"
    """The top rung of the shedding ladder."""
    REFUSALS = "refusals"
    """The budget for accepting and refusing is spent, and CONNECTs wait."""


@final
class Door:
    """Listeners rest for a tick at a time; each time is counted."""

    __slots__ = ("places", "rests", "resting")

    def __init__(self) -> None:
        self.places: int | None = None
        """Sockets that there may be at once; None: the driver has none."""
        self.resting: Rest | None = None
        """Why a listener rests now; None: all accept."""
        self.rests: Final = dict.fromkeys(Rest, 0)

    def rest(self, reason: Rest) -> None:
        """A listener is left alone until the next tick."""
        self.resting = reason
        self.rests[reason] += 1
