"""Markup: HTML from plain values; data is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import final


@final
class Html(str):
    __slots__ = ()


Content = str | Html
"""A str that is no Html is text, and is escaped."""


def html(content: Content) -> Html:
    return content if isinstance(content, Html) else Html(escape(content))


def element(name: str, *contents: Content, **attributes: str) -> Html:
    """`element("p", "text", class_="how")`; an attribute's trailing underscore is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{written}>{''.join(html(content) for content in contents)}</{name}>")


def join(contents: Iterable[Content]) -> Html:
    """The contents one after the other, each on its line."""
    return Html("\n".join(html(content) for content in contents))


def table(head: Sequence[str], rows: Iterable[Sequence[Content]]) -> Html:
    """A table whose cells know their column's name: on a narrow screen each row is a card."""
    top = element("thead", element("tr", *(element("th", name, scope="col") for name in head)))
    body = element(
        "tbody",
        *(
            element(
                "tr",
                *(
                    element("td", element("span", cell), data_label=name)
                    for name, cell in zip(head, row, strict=True)
                ),
            )
            for row in rows
        ),
    )
    return element("div", element("table", top, body), class_="wide")
