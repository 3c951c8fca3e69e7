"""Time series as an SVG for the page; no library."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#9a6700")
STYLE = (
    "<style>.paper{fill:#ffffff}text{fill:#1f2328}text.dim{fill:#57606a}.frame{stroke:#d0d7de}"
    "@media(prefers-color-scheme:dark){.paper{fill:#0d1117}text{fill:#e6edf3}"
    "text.dim{fill:#9198a1}.frame{stroke:#3d444d}}</style>"
)
"""The picture follows the theme of the reader."""
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 860, 110, 76, 16, 34, 34
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line: (second, value) in order."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """Lines that share axes; `log`: the values' axis is logarithmic."""

    title: str
    series: tuple[Series, ...]
    log: bool = False

    def scale(self) -> tuple[float, float]:
        values = [value for line in self.series for _, value in line.points]
        most = max(values, default=1.0) or 1.0
        if not self.log:
            return 0.0, nice(most)
        least = min((value for value in values if value > 0), default=1.0)
        return 10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(most) + 1e-9)

    def share(self, value: float) -> float:
        """Where a value lies on the axis, 0 to 1."""
        low, high = self.scale()
        if not self.log:
            return (value - low) / (high - low)
        span = math.log10(high) - math.log10(low) or 1.0
        return (math.log10(max(value, low)) - math.log10(low)) / span


def nice(value: float) -> float:
    """The next 1, 2, 2.5, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.9999)


def svg(panels: Sequence[Panel], title: str, mark_s: float | None = None, unit: str = " s") -> str:
    """Panels below each other; `mark_s`: a vertical line, where the overload ends; `unit`: of the
    horizontal axis."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.series))
    ends = [points[-1][0] for panel in panels for line in panel.series if (points := line.points)]
    end_s = max(ends, default=1.0) or 1.0
    height = TOP + 20 + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="{escape(title)}">',
        STYLE,
        f'<rect width="{WIDTH}" height="{height}" class="paper"/>',
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        x = WIDTH - RIGHT - 110 * (len(names) - number)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{x}" y="11" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 19}" y="17">{escape(name)}</text>')
    for number, panel in enumerate(panels):
        parts += draw(panel, TOP + 20 + number * (PANEL + GAP), end_s, names, mark_s, unit)
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw(
    panel: Panel, top: float, end_s: float, names: Sequence[str], mark_s: float | None, unit: str
) -> list[str]:
    """One panel: frame, axes, lines."""
    width = WIDTH - LEFT - RIGHT
    low, high = panel.scale()

    def x(second: float) -> float:
        return round(LEFT + width * second / end_s, 1)

    parts = [
        f'<text x="{LEFT}" y="{top - 6}" class="dim">{escape(panel.title)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{width}" height="{PANEL}" fill="none" class="frame"/>',
    ]
    for value, y in ((high, top + 4), (low, top + PANEL + 4)):
        parts.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{value:,.12g}</text>')
    step = nice(end_s / 6)
    for tick in range(int(end_s / step) + 1):
        parts.append(
            f'<text x="{x(tick * step)}" y="{top + PANEL + 14}" text-anchor="middle" '
            f'class="dim" font-size="10">{tick * step:g}{unit}</text>'
        )
    if mark_s is not None:
        parts.append(
            f'<line x1="{x(mark_s)}" x2="{x(mark_s)}" y1="{top}" y2="{top + PANEL}" '
            'class="frame" stroke-dasharray="4 3"/>'
        )
    for line in panel.series:
        points = " ".join(
            f"{x(second)},{round(top + PANEL * (1 - panel.share(value)), 1)}"
            for second, value in line.points
        )
        colour = COLOURS[names.index(line.name) % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
    return parts
