"""`flowguard topics`: the clients that get the messages of a topic."""

from typing import Annotated, Final

import typer

from flowguard.cli.console import command_group, refused
from flowguard.cli.remote.ask import DEFAULT_URL, Url
from flowguard.cli.remote.lists.pages import AsJson, Limit, show_list
from flowguard.ops.web.ask.lists import WHO_GETS, ReceiverPage

COLUMNS: Final = (
    ("client_id", "client"),
    ("state", "state"),
    ("filter", "by filter"),
    ("qos", "QoS"),
    ("client_class", "class"),
    ("queue_messages", "queued"),
    ("may_receive", "allowed"),
)

topics = command_group("Show the clients that get a topic.")


@topics.command("who-gets")
def who_gets(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of a message.")],
    limit: Limit = 1_000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the clients that would get a message, with the filter that matches.

    A client with several filters has several rows. One of the clients with the same `$share/`
    filter gets the message. `allowed` says whether the rules let the client receive the topic. The
    exit code is 1 if no client subscribes to the topic.
    """
    if not topic or "+" in topic or "#" in topic:
        raise typer.BadParameter("TOPIC is the topic of a message, without wildcards")
    of_list = ("topics who-gets", ReceiverPage, WHO_GETS, {"topic": topic})
    if not show_list(*of_list, COLUMNS, url, limit, as_json):
        raise refused(f"No client has subscribed to {topic!r}.")
