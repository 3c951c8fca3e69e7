"""`flowguard subscriptions`: the filters of clients."""

from typing import Annotated, Final

import typer

from flowguard.cli.console import command_group
from flowguard.cli.remote.ask import DEFAULT_URL, Url
from flowguard.cli.remote.lists.pages import AsJson, Limit, show_list
from flowguard.ops.web.ask.lists import SUBSCRIPTIONS, SubscriptionPage

COLUMNS: Final = (
    ("client_id", "client"),
    ("state", "state"),
    ("filter", "filter"),
    ("qos", "QoS"),
    ("no_local", "no local"),
    ("identifier", "identifier"),
)

subscriptions = command_group("List the filters of clients.")


@subscriptions.command("list")
def list_subscriptions(
    client: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only client ids that match, with * and ?.")
    ] = "",
    filter: Annotated[str, typer.Option(help="Only this filter, as clients sent it.")] = "",
    limit: Limit = 1_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the filters of all clients, also of those that are not connected."""
    query = {"client": client, "filter": filter}
    of_list = ("subscriptions list", SubscriptionPage, SUBSCRIPTIONS)
    show_list(*of_list, query, COLUMNS, url, limit, as_json)
