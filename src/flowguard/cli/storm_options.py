"""The options of `flowguard storm`, each with its help text."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flowguard.storm import RetryMode


class StormKind(StrEnum):
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

_of_clients = partial(typer.Option, rich_help_panel="Clients")
_of_messages = partial(typer.Option, rich_help_panel="Messages")
_of_slowness = partial(typer.Option, rich_help_panel="slow-subscriber")
_of_result = partial(typer.Option, rich_help_panel="Result")

Clients = Annotated[
    int,
    _of_clients(
        min=1,
        help="Of connect; the many of fanout and slow-subscriber (subscribers) and of fanin "
        "(publishers).",
    ),
]
Pairs = Annotated[int, _of_clients(min=1, help="Of pairs.")]
Speak = Annotated[Version, _of_clients(help="MQTT version.")]
RetryKind = Annotated[RetryMode, _of_clients(help="What a client does after a failure.")]
RetryFirst = Annotated[float, _of_clients(min=0.001, help="First wait, seconds.")]
RetryMax = Annotated[float, _of_clients(min=0.001, help="Longest wait, seconds.")]
Timeout = Annotated[float, _of_clients(min=0.01, help="For a CONNACK, seconds.")]
ConnectSeconds = Annotated[float, _of_clients(min=0.1, help="How long clients try, at most.")]
Hold = Annotated[
    float,
    _of_clients(
        min=0.0, help="connect: how long connections stay when nobody tries any more, seconds."
    ),
]
Durable = Annotated[bool, _of_clients("--durable", help="Sessions that the broker stores.")]

Seconds = Annotated[float, _of_messages(min=0.1, help="How long they publish.")]
Qos = Annotated[int, _of_messages(min=0, max=2, help="QoS.")]
Payload = Annotated[int, _of_messages(min=16, max=1_000_000, help="Bytes.")]
Outstanding = Annotated[
    int,
    _of_messages(min=1, max=65_535, help="Unacknowledged messages of a publisher, QoS 1 and 2."),
]
Backlog = Annotated[
    int,
    _of_messages(
        min=1,
        help="Messages on their way to a subscriber, any QoS; slow-subscriber has no such bound.",
    ),
]
Rate = Annotated[
    float | None,
    _of_messages(
        min=0.001, help="Messages per second of a publisher; otherwise as fast as the bounds allow."
    ),
]

Slow = Annotated[int, _of_slowness(min=0, help="Subscribers that read slowly.")]
SlowRate = Annotated[int, _of_slowness(min=0, help="What each of them reads, bytes per second.")]
CatchUp = Annotated[
    float,
    _of_slowness(
        min=0.1,
        help="How long they may read at full speed when nobody publishes any more, seconds.",
    ),
]

JsonTo = Annotated[Path | None, _of_result("--json", help="Write the result; -: to stdout.")]
Seed = Annotated[int, _of_result(help="Of the retry jitter.")]
