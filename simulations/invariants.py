"""Invariants."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold."""

    node: int | None
    """None: the whole world."""
    t_s: float
    invariant: str
    """Its number and name."""
    detail: str
    """What was seen."""
