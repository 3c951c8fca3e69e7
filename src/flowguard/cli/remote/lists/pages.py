"""Lists of a running broker, printed as a table or as JSON, and changes of what they show."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer
from rich import box
from rich.table import Table

from flowguard.cli.console import plain, refused, shown
from flowguard.cli.remote.answers import checked
from flowguard.cli.remote.ask import HINTS, ask, needs_answer
from flowguard.ops.web.callers import THERE_IS

PATIENCE_S: Final = 30.0
"""Time-out of one page or change, seconds: a busy broker answers in its free time."""

Limit = Annotated[int, typer.Option(min=1, help="Maximum number of rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def show_list(
    command: str,
    form: type[Any],
    path: str,
    query: Mapping[str, str],
    columns: Sequence[tuple[str, str]],
    url: str,
    limit: int,
    as_json: bool,
    by: str = "",
) -> int:
    """Print the rows of all pages, in columns of key and title; return their number.

    `form` is the TypedDict of a page: its rows, and the cursor `next`. With `by`, all rows are
    sorted by the number of that key, the largest first: each worker has a list of its own.
    """
    all_rows = _rows(command, form, url, path, query)
    if by:
        all_rows = iter(sorted(all_rows, key=lambda row: -row[by]))
    rows = list(islice(all_rows, limit + 1))
    found = rows[:limit]
    if as_json:
        sys.stdout.writelines(f"{json.dumps(row)}\n" for row in found)
    elif found or not by:
        plain(soft_wrap=False).print(_table(found, columns))
    if len(rows) > limit:
        typer.echo(f"There are more than {limit:,}; --limit shows them.", err=True)
    return len(found)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for key, title in columns:
        is_number = bool(rows) and type(rows[0].get(key)) in (int, float)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(key)) for key, _ in columns))
    return table


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, float) else shown(str(value))


def _rows(
    command: str, form: type[Any], url: str, path: str, query: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of all pages."""
    key = next(iter(form.__annotations__))
    wanted = {name: value for name, value in query.items() if value}
    cursor: str | None = ""
    while cursor is not None:
        parameters = urlencode({**wanted, "cursor": cursor} if cursor else wanted)
        page = asked(command, url, f"{path}?{parameters}", form)
        yield from page[key]
        cursor = page["next"]


def asked(
    command: str, url: str, path: str, form: type[Any], body: object = None, hint: str = ""
) -> Any:
    """Return the answer in the form of TypedDict `form`; with `body`, once a change is committed.

    Exits with the reason of the broker, and `hint` for something that it does not have (404).
    """
    with needs_answer(command):
        code, answer = ask(url, path, body, PATIENCE_S)
        why = answer.get("error") if code != 200 and isinstance(answer, dict) else None
        if isinstance(why, str):
            if code == 404 and why.startswith(THERE_IS):
                path = path.partition("?")[0]
                why = f"{url} has no {path}: a proxy or another version listens there"
                raise refused(f"flowguard {command}: {why}")
            raise refused(f"flowguard {command}: {shown(why)}", {**HINTS, 404: hint}.get(code, ""))
        return checked(url, code, answer, form)
