"""Document: one HTML file with everything in it, which makes no network request.

It forbids itself every connection (Content-Security-Policy).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from spark_analysis.report.markup import Content, Html, element, join, table
from spark_analysis.report.words import NONE
from spark_analysis.runs.examination import LeftOut

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ROOM: Final = Path(__file__).parent


def document(title: str, body: Iterable[Content]) -> str:
    """The text of the file."""
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
    main = element("main", join(body))
    inside = f"<head>\n{head}\n</head>\n<body>\n{main}\n</body>"
    return f'<!doctype html>\n<html lang="en" data-drawn>\n{inside}\n</html>\n'


def figure(chart: Html, caption: str) -> Html:
    return element("figure", element("figcaption", caption), chart)


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
