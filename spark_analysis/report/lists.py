"""Lists: sections of a page that consist of a table."""

from collections.abc import Sequence
from typing import Final

from spark_analysis.examination import LeftOut
from spark_analysis.report.markup import Html, element, table
from spark_analysis.report.words import NONE

LISTED_MAX: Final = 200
"""Rows of a list, at most; the tables beside the page have all of them."""


def listing(title: str, about: str, found: Html | None, name: str, nothing: str) -> Html:
    """A section that is a table, or says that there is nothing to list."""
    content = found if found is not None else element("p", nothing, class_="none")
    how = element("p", about, class_="how")
    return element("section", element("h2", title), how, content, id=name)


def left_out_list(left_out: Sequence[LeftOut]) -> Html:
    """Runs and files that could not be read."""
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
