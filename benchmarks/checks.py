"""A bound, what was reached, and whether that is enough; and how an experiment is told."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""The columns of a table: how each is called, and its cell for one row."""

MARKS = {True: "✓", False: "✗", None: "-"}


@dataclass(frozen=True)
class Check:
    """One line of an experiment's pass column; `passed` None: not judged, `reached` says why."""

    what: str
    reached: str
    bound: str
    passed: bool | None

    @property
    def cells(self) -> tuple[str, ...]:
        return self.what, self.reached, self.bound, MARKS[self.passed]


@dataclass(frozen=True)
class Grid:
    """A table, for the terminal and for the page."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, columns: Columns[T], rows: Iterable[T]) -> "Grid":
        """A row for each of `rows`."""
        cells = (tuple(cell(row) for cell in columns.values()) for row in rows)
        return cls(tuple(columns), tuple(cells))


@dataclass(frozen=True)
class Report:
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
