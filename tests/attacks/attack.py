"""An attack: what somebody outside does to a broker, what must hold then, and a control.

The control is the same measurement where it must find something: the attack without the protection,
or on a broker that does not answer. An attack whose control holds as well has shown nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """How much is thrown at the broker; `folder` is empty and its own."""

    folder: Path
    share: float = 1.0
    """Of the full attack: a test runs a small one."""

    def of(self, count: int, least: int = 1) -> int:
        """So many of `count`; `least`: fewer would be no attack."""
        return max(least, round(self.share * count))

    @property
    def is_full(self) -> bool:
        """Only then are times judged: a test says nothing about the machine it runs on."""
        return self.share == 1


@dataclass(frozen=True)
class Finding:
    """What was measured, and whether the bound holds."""

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
