"""`flowguard clients`: list clients, end a connection, end a session."""

from typing import Annotated, Final

import typer

from flowguard.cli.console import command_group, shown
from flowguard.cli.remote.ask import DEFAULT_URL, Url
from flowguard.cli.remote.explain import explain
from flowguard.cli.remote.lists.pages import AsJson, Limit, asked, show_list
from flowguard.ops.lists.clients import ClientState
from flowguard.ops.web.ask.changes import Changed
from flowguard.ops.web.ask.lists import FLAPPING, ClientPage, FlappingPage

COLUMNS: Final = (
    ("client_id", "client"),
    ("state", "state"),
    ("user", "user"),
    ("address", "address"),
    ("protocol", "MQTT"),
    ("subscriptions", "filters"),
    ("queue_messages", "queued"),
    ("inflight", "in flight"),
)
FLAPPING_COLUMNS: Final = (
    ("client_id", "client"),
    ("ends", "ends"),
    ("row_s", "within s"),
    ("reason", "last end"),
    ("by", "by"),
    ("lasted_s", "after s"),
    ("state", "now"),
    ("user", "user"),
    ("address", "address"),
)

clients = command_group("List, disconnect and remove clients and their sessions.")
Name = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Client identifier.")]


@clients.command("list")
def list_clients(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Client ids, with * and ?.")
    ] = "",
    user: Annotated[str, typer.Option(help="Only clients of this user.")] = "",
    address: Annotated[str, typer.Option(help="Only addresses that begin so.")] = "",
    state: Annotated[ClientState | None, typer.Option(help="Only clients in this state.")] = None,
    limit: Limit = 1_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the clients that are connected or have a session.

    `--state absent` lists the sessions without a connection.
    """
    query = {"id": pattern, "user": user, "address": address, "state": str(state or "")}
    show_list("clients list", ClientPage, "/clients", query, COLUMNS, url, limit, as_json)


@clients.command("flapping")
def flapping_clients(limit: Limit = 100, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the clients whose connections end again and again.

    Each of at least three ends is at most 5 minutes after the one before. The broker remembers the
    ends of the last 4,096 clients.
    """
    of_list, columns = ("clients flapping", FlappingPage, FLAPPING), FLAPPING_COLUMNS
    found = show_list(*of_list, {}, columns, url, limit, as_json, by="ends")
    if not found and not as_json:
        typer.echo("No client flaps.")


clients.command("show")(explain)


@clients.command()
def kick(client_id: Name, url: Url = DEFAULT_URL) -> None:
    """Disconnect a client, with reason 0x98 (administrative action), but keep its session."""
    _change("kick", client_id, url)
    typer.echo(f"disconnected {shown(client_id)}; a stored session stays")


@clients.command()
def forget(client_id: Name, url: Url = DEFAULT_URL) -> None:
    """End a client's session: its connection, subscriptions and queued messages."""
    _change("forget", client_id, url)
    typer.echo(f"forgot {shown(client_id)}: its session and queued messages are deleted")


def _change(action: str, client_id: str, url: str) -> None:
    hint = f"`flowguard clients list` shows the names; this was {client_id!r}."
    of_change = (f"clients {action}", url, f"/clients/{action}", Changed)
    asked(*of_change, {"client_id": client_id}, hint)
