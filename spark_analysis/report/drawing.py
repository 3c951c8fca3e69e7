"""Drawing: charts as static SVG in the page's colours (classes `c0` to `c7` of page.css).

Positions across are percentages, so a chart is as wide as the page and its text keeps its size.
Only lines are in an inner picture, which stretches.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, final

from spark_analysis.report.markup import Html, element

COLOURS: Final = 8
DASHES: Final = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 3 2 3")
"""Lengths of strokes and gaps of a line, pixels."""
_WIDE: Final = 1000
"""Width of an inner picture, in its own units."""
_EDGE: Final = 0.04
"""A label so near an end of the axis does not reach beyond it."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to 0 to 1, and its labels."""

    low: float
    high: float
    label: Callable[[float], str]
    title: str = ""
    is_log: bool = False
    marks: tuple[float, ...] = ()
    """The values that have a label; empty: round numbers."""

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(max(at, self.low))
        return (at - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        if self.marks:
            return [*self.marks[:: -(-len(self.marks) // most)]]
        found = _decades(self.low, self.high, most) if self.is_log else []
        return found or _steps(self.low, self.high, most)


def axis(
    values: Iterable[float],
    label: Callable[[float], str],
    title: str = "",
    *,
    is_log: bool = False,
    is_from_zero: bool = True,
) -> Axis:
    """An axis that all values fit on, with some space around them."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not is_log)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if is_log and known:
        return Axis(low / 1.15, high * 1.15, label, title, is_log=True)
    space = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    low = 0.0 if is_from_zero and low >= 0 else low - space
    return Axis(low, high + space, label, title)


def _round(step: float) -> float:
    """The next 1, 2 or 5 with zeros that is not less."""
    size = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * (1 - 1e-9))


def _steps(low: float, high: float, most: int) -> list[float]:
    """Round numbers; a short axis has more than `most` if else it had fewer than two."""
    found: list[float] = []
    while len(found) < 2:
        step = _round((high - low) / most)
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        found = [step * number for number in numbers]
        most += 1
    return found


def _decades(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, and 2 and 5 times those if there are not too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        inside = [value for value in found if low <= value <= high]
        if len(inside) <= most:
            break
    return inside[:: -(-len(inside) // most)] if len(inside) > 1 else []


@final
class Chart:
    """One chart; what is drawn first lies below. Without an axis `up`, heights are 0 to 1."""

    def __init__(self, across: Axis, up: Axis | None = None, *, height_px: int = 220) -> None:
        self._across = across
        self._up = up
        self._height_px = height_px
        self._drawn: list[str] = []
        for tick in across.ticks(8):
            self.rule(tick, "grid")
        for tick in [] if up is None else up.ticks(_rows(height_px)):
            self.level(tick, "grid")

    # --- what can be drawn -------------------------------------------------------------------

    def rule(self, x: float, style: str) -> None:
        """A vertical line."""
        at = self._x(x)
        self._drawn.append(f'<line class="{style}" x1="{at}" x2="{at}" y1="0" y2="100%"/>')

    def level(self, y: float, style: str) -> None:
        """A horizontal line."""
        at = self._y(y)
        self._drawn.append(f'<line class="{style}" x1="0" x2="100%" y1="{at}" y2="{at}"/>')

    def band(self, from_x: float, until_x: float, style: str, title: str = "") -> None:
        """A time, over the whole height."""
        left, right = self._across.place(from_x), self._across.place(until_x)
        self._drawn.append(
            f'<rect class="{style}" x="{_percent(left)}" width="{_percent(right - left)}" '
            f'y="0" height="100%">{_title(title)}</rect>'
        )

    def line(
        self, points: Sequence[tuple[float, float | None]], colour: int, dash: int = 0
    ) -> None:
        """A line through the points; it is broken at a point without a value."""
        words: list[str] = []
        is_open = False
        for x, y in points:
            if y is None:
                is_open = False
                continue
            place = f"{_WIDE * self._across.place(x):.1f} {self._y(y)}"
            # A stroke without a length, with round ends, shows a point that has none beside it.
            words.append(f"L{place}" if is_open else f"M{place}h0")
            is_open = True
        dashes = f' stroke-dasharray="{DASHES[dash]}"' if dash else ""
        self._drawn.append(
            f'<svg viewBox="0 0 {_WIDE} {self._height_px}" preserveAspectRatio="none" '
            f'width="100%" height="{self._height_px}"><path class="line c{colour}"{dashes} '
            f'd="{"".join(words)}"/></svg>'
        )

    def dot(self, x: float, y: float, style: str, size: float = 4, title: str = "") -> None:
        place = f'cx="{self._x(x)}" cy="{self._y(y)}" r="{size:g}"'
        self._drawn.append(f'<circle class="dot {style}" {place}>{_title(title)}</circle>')

    def span(self, first: tuple[float, float], last: tuple[float, float], colour: int) -> None:
        """A straight stroke between two points: an interval."""
        ends = f'x1="{self._x(first[0])}" y1="{self._y(first[1])}" '
        ends += f'x2="{self._x(last[0])}" y2="{self._y(last[1])}"'
        self._drawn.append(f'<line class="line c{colour}" {ends}/>')

    def text(self, x: float, y_px: float, words: str, style: str) -> None:
        place = self._across.place(x)
        anchor = _anchor(place)
        self._drawn.append(
            f'<text class="{style}" x="{_percent(place)}" y="{y_px:g}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    # --- as a whole --------------------------------------------------------------------------

    def html(self, *, has_ticks: bool = True) -> Html:
        """The chart with its axes."""
        height = self._height_px
        area = f'<svg class="area" height="{height}">{"".join(self._drawn)}</svg>'
        ticks = Html("".join(self._across_labels())) if has_ticks else Html("")
        plot = element("div", Html(self._up_labels() + area), ticks, class_="plot")
        above = "" if self._up is None else self._up.title
        parts = [element("p", above, class_="axis")] if above else []
        below = self._across.title if has_ticks else ""
        last = [element("p", below, class_="axis below")] if below else []
        return element("div", *parts, plot, *last)

    def _up_labels(self) -> str:
        if self._up is None:
            return "<i></i>"
        texts = "".join(
            f'<text x="100%" y="{self._y(tick)}" dy="4" text-anchor="end">'
            f"{escape(self._up.label(tick))}</text>"
            for tick in self._up.ticks(_rows(self._height_px))
        )
        return f'<svg class="up" height="{self._height_px}">{texts}</svg>'

    def _across_labels(self) -> Iterable[str]:
        yield '<i></i><svg class="ticks" height="20">'
        for number, tick in enumerate(self._across.ticks(8)):
            place = self._across.place(tick)
            style = ' class="minor"' if number % 2 else ""
            yield (
                f'<text{style} x="{_percent(place)}" y="15" text-anchor="{_anchor(place)}">'
                f"{escape(self._across.label(tick))}</text>"
            )
        yield "</svg>"

    def _x(self, value: float) -> str:
        return _percent(self._across.place(value))

    def _y(self, value: float) -> str:
        place = value if self._up is None else self._up.place(value)
        return f"{self._height_px * (1 - place):.1f}"


def _rows(height_px: int) -> int:
    return max(height_px // 40, 2)


def _percent(share: float) -> str:
    return f"{100 * share:.5g}%"


def _anchor(place: float) -> str:
    return "start" if place < _EDGE else "end" if place > 1 - _EDGE else "middle"


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
