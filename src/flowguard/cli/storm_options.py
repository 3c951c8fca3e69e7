"""The options of `flowguard storm`, each with its help text."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flowguard.storm import RetryMode

CROWD, MESSAGES, SLOWNESS, RESULT = "Clients", "Messages", "slow-subscriber", "Result"


class StormKind(StrEnum):
    """The kinds of storm."""

    CONNECT = "connect"
    PAIRS = "pairs"
    FANOUT = "fanout"
    FANIN = "fanin"
    SLOW_SUBSCRIBER = "slow-subscriber"


class Version(StrEnum):
    """The protocol that clients speak."""

    V311 = "3.1.1"
    V5 = "5.0"


Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="A broker.")]
What = Annotated[
    StormKind,
    typer.Argument(
        metavar="SCENARIO",
        help="connect: clients come all at once and stay. pairs: one publisher to one "
        "subscriber, many times. fanout: one to many. fanin: many to one. slow-subscriber: one to "
        "many, of which some do not read while it publishes.",
    ),
]

# --- clients -------------------------------------------------------------------------------------

Clients = Annotated[
    int,
    typer.Option(
        min=1,
        rich_help_panel=CROWD,
        help="Of connect; the many of fanout and slow-subscriber (subscribers) and of fanin "
        "(publishers).",
    ),
]
Pairs = Annotated[int, typer.Option(min=1, rich_help_panel=CROWD, help="Of pairs.")]
Speak = Annotated[Version, typer.Option(rich_help_panel=CROWD, help="MQTT version.")]
RetryKind = Annotated[
    RetryMode, typer.Option(rich_help_panel=CROWD, help="What a client does after a failure.")
]
RetryFirst = Annotated[
    float, typer.Option(min=0.001, rich_help_panel=CROWD, help="First wait, seconds.")
]
RetryMax = Annotated[
    float, typer.Option(min=0.001, rich_help_panel=CROWD, help="Longest wait, seconds.")
]
Timeout = Annotated[
    float, typer.Option(min=0.01, rich_help_panel=CROWD, help="For a CONNACK, seconds.")
]
ConnectSeconds = Annotated[
    float, typer.Option(min=0.1, rich_help_panel=CROWD, help="How long clients try, at most.")
]
Hold = Annotated[
    float,
    typer.Option(
        min=0.0,
        rich_help_panel=CROWD,
        help="connect: how long connections stay when nobody tries any more, seconds.",
    ),
]
Durable = Annotated[
    bool,
    typer.Option("--durable", rich_help_panel=CROWD, help="Sessions that the broker stores."),
]

# --- messages ------------------------------------------------------------------------------------

Seconds = Annotated[
    float, typer.Option(min=0.1, rich_help_panel=MESSAGES, help="How long they publish.")
]
Qos = Annotated[int, typer.Option(min=0, max=2, rich_help_panel=MESSAGES, help="QoS.")]
Payload = Annotated[
    int, typer.Option(min=16, max=1_000_000, rich_help_panel=MESSAGES, help="Bytes.")
]
Outstanding = Annotated[
    int,
    typer.Option(
        min=1,
        max=65_535,
        rich_help_panel=MESSAGES,
        help="Unacknowledged messages of a publisher, QoS 1 and 2.",
    ),
]
Backlog = Annotated[
    int,
    typer.Option(
        min=1,
        rich_help_panel=MESSAGES,
        help="Messages on their way to a subscriber, any QoS; slow-subscriber has no such bound.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        rich_help_panel=MESSAGES,
        help="Messages per second of a publisher; otherwise as fast as the bounds allow.",
    ),
]

# --- slow subscribers ----------------------------------------------------------------------------

Slow = Annotated[
    int, typer.Option(min=0, rich_help_panel=SLOWNESS, help="Subscribers that read slowly.")
]
SlowRate = Annotated[
    int,
    typer.Option(
        min=0, rich_help_panel=SLOWNESS, help="What each of them reads, bytes per second."
    ),
]
CatchUp = Annotated[
    float,
    typer.Option(
        min=0.1,
        rich_help_panel=SLOWNESS,
        help="How long they may read at full speed when nobody publishes any more, seconds.",
    ),
]

# --- result --------------------------------------------------------------------------------------

JsonTo = Annotated[
    Path | None,
    typer.Option("--json", rich_help_panel=RESULT, help="Write the result; -: to stdout."),
]
Seed = Annotated[int, typer.Option(rich_help_panel=RESULT, help="Of the retry jitter.")]
