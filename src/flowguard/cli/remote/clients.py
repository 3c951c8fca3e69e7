"""`flowguard clients`: list clients, end a connection, end a session."""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlencode

import typer
from rich import box
from rich.table import Table

from flowguard.cli.console import plain, refused, shown
from flowguard.cli.remote.answers import turned_down, understood
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask, complain
from flowguard.cli.remote.explain import explain
from flowguard.ops.clients import ClientPage, ClientState, ListedClient

PATIENCE_S: Final = 30.0
"""Time-out of one page or change, seconds: a busy broker answers in its free time."""
COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("client_id", "client"),
    ("state", "state"),
    ("user", "user"),
    ("address", "address"),
    ("protocol", "MQTT"),
    ("subscriptions", "filters"),
    ("queue_messages", "queued"),
    ("inflight", "in flight"),
)

clients = typer.Typer(
    help="List, disconnect and remove clients.", no_args_is_help=True, add_completion=False
)
Url = Annotated[str, typer.Option(help="The broker's HTTP port.")]
Name = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client identifier.")]


@clients.command("list")
def list_clients(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Client ids, with * and ?.")
    ] = "",
    user: Annotated[str, typer.Option(help="Only clients of this user.")] = "",
    address: Annotated[str, typer.Option(help="Only addresses that begin so.")] = "",
    state: Annotated[ClientState | None, typer.Option(help="Only clients in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Clients shown.")] = 1_000,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the clients that are connected or have a session."""
    wanted = {"id": pattern, "user": user, "address": address, "state": state or ""}
    query = {key: str(value) for key, value in wanted.items() if value}
    found: list[ListedClient] = []
    try:
        for row in _rows(url, query):
            if len(found) == limit:
                found_more = True
                break
            found.append(row)
        else:
            found_more = False
    except NoAnswer as error:
        raise complain("clients list", error, "--url http://HOST:PORT") from error
    if as_json:
        sys.stdout.writelines(f"{json.dumps(row)}\n" for row in found)
    else:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for key, title in COLUMNS:
            is_number = bool(found) and isinstance(found[0][key], int)  # type: ignore[literal-required]
            table.add_column(title, justify="right" if is_number else "left", overflow="fold")
        for row in found:
            table.add_row(*(shown(str(row[key])) for key, _ in COLUMNS))  # type: ignore[literal-required]
        plain(soft_wrap=False).print(table)
    if found_more:
        typer.echo(f"There are more than {limit:,}; --limit shows them.", err=True)


def _rows(url: str, query: dict[str, str]) -> Iterator[ListedClient]:
    """Yield the rows of all pages. Raises NoAnswer."""
    cursor: str | None = ""
    while cursor is not None:
        parameters = urlencode({**query, "cursor": cursor} if cursor else query)
        code, answer = ask(url, f"/clients?{parameters}", patience_s=PATIENCE_S)
        page = understood(url, code, answer, ClientPage)
        yield from page["clients"]
        cursor = page["next"]


clients.command("show")(explain)


@clients.command()
def kick(client_id: Name, url: Url = DEFAULT_URL) -> None:
    """Disconnect a client, with reason 0x98 (administrative action), but keep its session."""
    _change("kick", client_id, url)
    typer.echo(f"disconnected {shown(client_id)}; its session stays if it is to survive")


@clients.command()
def forget(client_id: Name, url: Url = DEFAULT_URL) -> None:
    """End a client's session: its connection, subscriptions and queued messages."""
    _change("forget", client_id, url)
    typer.echo(f"forgot {shown(client_id)}: its session and queued messages are deleted")


def _change(action: str, client_id: str, url: str) -> None:
    try:
        code, answer = ask(url, f"/clients/{action}", {"client_id": client_id}, PATIENCE_S)
        if code == 404 and isinstance(answer, dict):
            raise refused(
                f"flowguard clients {action}: {shown(str(answer.get('error')))}: {client_id!r}",
                "`flowguard clients list` shows the names.",
            )
        if code != 200:
            raise turned_down(url, code, answer)
    except NoAnswer as error:
        raise complain(f"clients {action}", error, "--url http://HOST:PORT") from error
