"""Document: one HTML file with everything in it, which makes no network request.

It forbids itself every connection (Content-Security-Policy).
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from plotly.offline import get_plotlyjs

from spark_analysis.report.axes import Figure
from spark_analysis.report.markup import Content, Html, element, join, table
from spark_analysis.report.words import NONE
from spark_analysis.runs.examination import LeftOut

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_ROOM: Final = Path(__file__).parent


def document(title: str, body: Iterable[Content]) -> str:
    """The text of the file, with the scripts that draw its figures."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<link rel="icon" href="data:,">'),
            element("title", title),
            element("style", Html((_ROOM / "page.css").read_text())),
        ]
    )
    scripts = join(
        [
            element("script", Html(get_plotlyjs())),
            element("script", Html((_ROOM / "page.js").read_text())),
        ]
    )
    main = element("main", join(body))
    inside = f"<head>\n{head}\n</head>\n<body>\n{main}\n{scripts}\n</body>"
    return f'<!doctype html>\n<html lang="en">\n{inside}\n</html>\n'


class Figures:
    """The figures of one document, numbered as they come."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, figure: Figure, caption: str, legend: Html | None = None) -> Html:
        """A chart with its caption, and the record that it is drawn from."""
        self._count += 1
        text = json.dumps(figure, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        data = Html(
            f'<script type="application/json">{text.replace("<", chr(92) + "u003c")}</script>'
        )
        chart = element(
            "div",
            class_="chart",
            id=f"figure-{self._count}",
            style=f"height:{figure['layout']['height']}px",
            role="img",
            aria_label=caption,
        )
        return element(
            "figure", element("figcaption", caption), chart, data, *([legend] if legend else [])
        )


def legend(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Colour, dash and words, in the order of the traces; a click hides a line."""
    borders = {"solid": "solid", "dot": "dotted"}
    items = []
    for index, (colour, dash, words) in enumerate(entries):
        style = f"border-top:3px {borders.get(dash, 'dashed')} {colour}"
        swatch = element("i", style=style)
        button = element("button", swatch, words, type="button", data_trace=str(index))
        items.append(element("li", button))
    return element("ul", *items, class_="legend")


LISTED_MAX: Final = 200
"""Rows of a list, at most; the tables beside the page have all of them."""


def listing(title: str, about: str, found: Html | None, name: str, nothing: str) -> Html:
    """Return a section with a table, or with the text `nothing`."""
    content = found if found is not None else element("p", nothing, class_="none")
    how = element("p", about, class_="how")
    return element("section", element("h2", title), how, content, id=name)


def left_out_list(left_out: Sequence[LeftOut]) -> Html:
    rows = [
        (element("code", one.path), one.run_id or NONE, one.reason) for one in left_out[:LISTED_MAX]
    ]
    return listing(
        "What was left out?",
        "A run is read as a whole or not at all; nothing of these is in any figure.",
        table(("where", "run", "why"), rows) if rows else None,
        "left-out",
        "Nothing.",
    )
