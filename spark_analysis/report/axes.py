"""Axes: the common form of all charts."""

from typing import Any, Final

from spark_analysis.questions.question import Unit

Figure = dict[str, Any]
"""A figure for plotly.js, as plain records."""

INK: Final = "#1d2733"
FAINT: Final = "#5b6875"
GRID: Final = "#e4e8ec"
TICKS: Final = {
    "tickfont": {"size": 11, "color": FAINT},
    "ticks": "outside",
    "ticklen": 5,
    "tickcolor": "rgba(0,0,0,0)",
}
"""Labels keep away from the corner in which the axes meet."""


def bare(height_px: int) -> Figure:
    """A layout without a vertical axis."""
    return {
        "height": height_px,
        "autosize": True,
        "showlegend": False,
        "margin": {"l": 10, "r": 14, "t": 6, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "hoverlabel": {"align": "left", "bgcolor": "#ffffff"},
        "xaxis": {
            **TICKS,
            "gridcolor": GRID,
            "zeroline": False,
            "automargin": True,
        },
    }


def title(words: str, unit: Unit) -> Figure:
    text = words if unit in (Unit.COUNT, Unit.INDEX) else f"{words} [{unit}]"
    return {"text": text, "font": {"size": 12, "color": FAINT}, "standoff": 6}


def safe(text: str) -> str:
    """A name without plotly's markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short(value: float) -> float:
    """The value with six digits: a screen shows no more."""
    return float(f"{value:.6g}")
