"""The first page of several workers: a row for each worker, and the sums of the broker.

It has no script. The browser loads it again every two seconds.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from flowguard.ops.condition import progress
from flowguard.ops.status import Status
from flowguard.ops.web.http_connection import Response
from flowguard.ops.web.page import HTML_TYPE, digest

STYLE: Final = (
    ":root{color-scheme:light dark}body{margin:1rem;font:15px/1.5 system-ui,sans-serif}"
    "div{overflow-x:auto}"
)
POLICY: Final = f"default-src 'none'; style-src {digest(STYLE)}; frame-ancestors 'none'"
HEADINGS: Final = (
    "worker",
    "clients",
    "sessions",
    "messages in",
    "messages out",
    "dropped",
    "window",
    "pressure",
)


def workers_page(
    sentence: str,
    workers: Sequence[tuple[str, str]],
    statuses: Sequence[Status | None],
    cluster: str = "",
) -> Response:
    """Return the page; `sentence` is the state of all workers. `workers` has the name of each, and
    its state if it has no status. `cluster` is a section about the cluster, or ""."""
    rows: list[Sequence[str]] = []
    for index, ((name, state), status) in enumerate(zip(workers, statuses, strict=True)):
        link = f'<a href="workers/{index}/">{name}</a>'
        rows.append([link, *([state] if status is None else _cells(status))])
    serving = [each for each in statuses if each is not None]
    state = "; ".join(filter(None, (sentence, progress(serving))))
    body = (
        '<!DOCTYPE html><html lang="en"><title>flowguard</title>'
        '<meta http-equiv="refresh" content="2">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style>"
        f"<h1>{state}</h1>{table(HEADINGS, rows, ['all', *_sums(serving)])}{cluster}"
        '<p><a href="workers/0/">Find a client of any worker</a> <a href="metrics">Metrics</a> '
        '<a href="limits">Limits</a> <a href="workers/0/help">Help</a></p>'
    )
    return Response(200, body.encode(), HTML_TYPE, (("content-security-policy", POLICY),))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], last: Sequence[str] = ()) -> str:
    """Return a table in HTML; `last` is a row of sums. The cells are HTML already."""
    lines = [_row("th", headings), *(_row("td", row) for row in rows)]
    if last:
        lines.append(_row("th", last))
    return f"<div><table border cellpadding=6>{''.join(lines)}</table></div>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{cell}</{kind}>" for cell in cells)


def _cells(status: Status) -> list[str]:
    window, pressure = status["window"], status["pressure"]
    granted = "closed" if window["closed"] else f"{window['granted']:.3g}"
    return [*_sums([status]), granted, f"{pressure['value']:.2f} {pressure['cause'] or ''}"]


def _sums(statuses: Sequence[Status]) -> list[str]:
    """Return the cells that show a sum of the broker."""
    sums = (
        sum(each["clients"]["connected"] for each in statuses),
        sum(each["clients"].get("sessions", 0) for each in statuses),
        sum(each["traffic"]["publish_received"] for each in statuses),
        sum(each["traffic"]["publish_sent"] for each in statuses),
        sum(sum(each["dropped"].values()) for each in statuses),
    )
    return [f"{each:,}" for each in sums]
