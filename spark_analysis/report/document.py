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
LISTED_MAX: Final = 200
"""Rows of a list, at most; the tables beside the page have all of them."""
ROWS_OPEN: Final = 10


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


def header(title: str, facts: Iterable[tuple[str, str]], *contents: Content) -> Html:
    """A page's title, and facts as values with their words."""
    cells = [element("div", element("dt", words), element("dd", value)) for value, words in facts]
    return element("header", element("h1", title), element("dl", *cells), *contents)


def trouble(notes: Sequence[Content]) -> Html:
    """A warning that readers of the figures need first; empty without notes."""
    items = [element("li", note) for note in notes]
    return element("ul", *items, class_="trouble") if items else Html("")


def long_table(head: Sequence[str], rows: Sequence[Sequence[Content]]) -> Html:
    """A table of which only the first rows are open; the others open on a click, and for
    printing."""
    more = rows[ROWS_OPEN:]
    if not more:
        return table(head, rows)
    opened = element("details", element("summary", f"{len(more)} more"), table(head, more))
    return element("div", table(head, rows[:ROWS_OPEN]), opened)


def listing(
    title: str, about: str, found: Html | None, name: str, nothing: str = "Nothing."
) -> Html:
    """Return a section with a table or a chart, or with the text `nothing`."""
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
    )
