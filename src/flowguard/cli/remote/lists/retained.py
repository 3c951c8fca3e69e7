"""`flowguard retained`: list and delete retained messages."""

from typing import Annotated, Final

import typer

from flowguard.cli.console import command_group, shown
from flowguard.cli.remote.ask import DEFAULT_URL, Url
from flowguard.cli.remote.lists.pages import AsJson, Limit, asked, show_list
from flowguard.lines import count
from flowguard.ops.web.ask.changes import DELETE_RETAINED, Deleted
from flowguard.ops.web.ask.lists import RETAINED, RetainedPage

COLUMNS: Final = (
    ("topic", "topic"),
    ("payload_bytes", "bytes"),
    ("qos", "QoS"),
    ("expires_in_s", "expires in s"),
)

retained = command_group("List and delete retained messages.")


@retained.command("list")
def list_retained(
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topic, or filter with + and #.")
    ] = "#",
    limit: Limit = 1_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List retained messages, without their payload. `$SYS/#` lists those of the broker."""
    of_list = ("retained list", RetainedPage, RETAINED, {"filter": filter})
    show_list(*of_list, COLUMNS, url, limit, as_json)


@retained.command()
def delete(
    filter: Annotated[str, typer.Argument(metavar="FILTER", help="Topic, or filter with + and #.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Delete retained messages. Clients that have received them get no message about it."""
    of_change = ("retained delete", url, DELETE_RETAINED, Deleted)
    deleted, goes_on = 0, True
    while goes_on:
        answer = asked(*of_change, {"filter": filter})
        deleted, goes_on = deleted + answer["deleted"], answer["goes_on"]
    typer.echo(f"deleted {count(deleted, 'retained message')} of {shown(filter)}")
