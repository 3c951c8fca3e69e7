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


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST:PORT SCENARIO",
        help="A broker, and what to do to it. connect: clients come all at once and stay. pairs: "
        "one publisher to one subscriber, many times. fanout: one to many. fanin: many to one. "
        "slow-subscriber: one to many, some of which do not read while it publishes. With --kit a "
        "broker alone, with --compare reports.",
    ),
]

_of_clients = partial(typer.Option, rich_help_panel="Clients")
_of_messages = partial(typer.Option, rich_help_panel="Messages")
_of_slowness = partial(typer.Option, rich_help_panel="slow-subscriber")
_of_kit = partial(typer.Option, rich_help_panel="Kit")
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
Speak = Annotated[
    Version | None,
    _of_clients(help="MQTT version; absent: 5.0, and --kit falls back to 3.1.1 where it has to."),
]
RetryKind = Annotated[RetryMode, _of_clients(help="What a client does after a failure.")]
RetryFirst = Annotated[float, _of_clients(min=0.001, help="First wait, seconds.")]
RetryMax = Annotated[float, _of_clients(min=0.001, help="Longest wait, seconds.")]
Timeout = Annotated[float, _of_clients(min=0.01, help="For a CONNACK, seconds.")]
ConnectSeconds = Annotated[
    float | None,
    _of_clients(min=0.1, help="How long clients try, at most; absent: 60, with --kit 30."),
]
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

IsKit = Annotated[
    bool,
    _of_kit(
        "--kit",
        help="Experiments in turn, each with a verdict: connect storm, retry storm, slow "
        "subscriber, flood with pings, noisy neighbour, wide fan-out, restart. Of the options for "
        "storms only --clients, --version and --connect-seconds count.",
    ),
]
IsComparison = Annotated[
    bool, _of_kit("--compare", help="Show reports of --kit side by side: --compare A.json B.json")
]
Only = Annotated[str, _of_kit(help="Experiments by comma, as connect-storm,restart; absent: all.")]
RestartCommand = Annotated[
    str | None,
    _of_kit(
        metavar="COMMAND",
        help="Shell command that ends the broker, starts it again and returns; without it there is "
        "no experiment with a restart.",
    ),
]
Name = Annotated[str, _of_kit(help="What reports call the broker; absent: its address.")]
Pid = Annotated[
    list[int] | None,
    _of_kit(help="Process of a broker on this machine whose memory is watched; may be repeated."),
]

HtmlTo = Annotated[Path | None, _of_result("--html", help="Write the scoreboard, one HTML page.")]
JsonTo = Annotated[Path | None, _of_result("--json", help="Write the result; -: to stdout.")]
Seed = Annotated[int, _of_result(help="Of the retry jitter.")]
