"""A bound, what was reached, and whether that is enough; and how an experiment is told."""

from dataclasses import dataclass
from typing import Protocol

MARKS = {True: "✓", False: "✗", None: "-"}


@dataclass(frozen=True)
class Check:
    """One line of an experiment's pass column; `passed` None: not judged, `reached` says why."""

    what: str
    reached: str
    bound: str
    passed: bool | None

    @property
    def cells(self) -> list[str]:
        return [self.what, self.reached, self.bound, MARKS[self.passed]]


@dataclass(frozen=True)
class Grid:
    """A table, for the terminal and for the page."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Report:
    """What there is to say about one experiment."""

    key: str
    """For `--only`, and the name of its page."""
    title: str
    scaled: str
    """What the design asks for, and what this machine was given."""
    checks: tuple[Check, ...]
    grids: tuple[Grid, ...] = ()
    notes: tuple[str, ...] = ()
    picture: str | None = None
    """An SVG, beside the page."""

    @property
    def passed(self) -> bool:
        """Nothing was missed."""
        return all(check.passed is not False for check in self.checks)

    def report(self) -> "Report":
        """Told already."""
        return self


class Reported(Protocol):
    """A result that can be told."""

    def report(self) -> Report: ...


def at_most(what: str, reached: float, bound: float, unit: str = "", digits: int = 0) -> Check:
    return Check(
        what, f"{reached:,.{digits}f}{unit}", f"≤ {bound:,.{digits}f}{unit}", reached <= bound
    )


def at_least(what: str, reached: float, bound: float, unit: str = "", digits: int = 0) -> Check:
    return Check(
        what, f"{reached:,.{digits}f}{unit}", f"≥ {bound:,.{digits}f}{unit}", reached >= bound
    )


def none_of(what: str, count: int) -> Check:
    return Check(what, f"{count:,}", "0", count == 0)
