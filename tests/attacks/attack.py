"""An attack: the action of an outsider against a broker, the bound that must hold, and a control.

The control is the same measurement in a case where the bound must break: the attack without the
protection, or on a broker that does not answer. An attack whose control also holds shows nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """How much is thrown at the broker; `folder` is empty and its own."""

    folder: Path
    share: float = 1.0
    """Share of the full attack; a test runs a small one."""

    def of(self, count: int, least: int = 1) -> int:
        """Return the share of `count`; fewer than `least` would be no attack."""
        return max(least, round(self.share * count))

    @property
    def is_full(self) -> bool:
        """True if times are judged, only in a full attack: a test depends on its machine."""
        return self.share == 1


@dataclass(frozen=True)
class Finding:
    """The measured values, and whether the bound holds."""

    holds: bool
    said: str


class CannotRun(Exception):
    """Not on this machine; why is the argument."""


Run = Callable[[Size], Awaitable[Finding]]


@dataclass(frozen=True)
class Attack:
    """One attack; `bound` says in words what must hold."""

    name: str
    bound: str
    run: Run
    control: Run
    is_tested: bool = True
    """By `make test`, in a small form; False: another attack's small form tests the same."""
