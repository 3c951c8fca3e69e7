"""The options of `flowguard storm`, each with its help text."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loadgen.command.access import PASSWORD
from loadgen.storm import RetryMode


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
        help="Address of a broker, also as mqtts://, ws:// or wss://HOST:PORT, and a scenario. "
        "connect: all clients connect at once and stay. "
        "pairs: many pairs of one publisher and one subscriber. fanout: one publisher, many "
        "subscribers. fanin: many publishers, one subscriber. slow-subscriber: fanout with "
        "subscribers that do not read while it publishes. --kit needs the address alone, --compare "
        "needs reports instead.",
    ),
]

_of_clients = partial(typer.Option, rich_help_panel="Clients")
_of_access = partial(typer.Option, rich_help_panel="Access")
_of_messages = partial(typer.Option, rich_help_panel="Messages")
_of_slowness = partial(typer.Option, rich_help_panel="slow-subscriber")
_of_kit = partial(typer.Option, rich_help_panel="Kit")
_of_result = partial(typer.Option, rich_help_panel="Result")

Clients = Annotated[
    int,
    _of_clients(
        min=1,
        help="Clients of connect, subscribers of fanout and slow-subscriber, publishers of fanin.",
    ),
]
Pairs = Annotated[int, _of_clients(min=1, help="Number of pairs.")]
Speak = Annotated[
    Version | None,
    _of_clients(help="MQTT version; default: 5.0, and --kit falls back to 3.1.1 if needed."),
]
RetryKind = Annotated[RetryMode, _of_clients(help="Behaviour of a client after a failure.")]
RetryFirst = Annotated[float, _of_clients(min=0.001, help="First wait, seconds.")]
RetryMax = Annotated[float, _of_clients(min=0.001, help="Longest wait, seconds.")]
Timeout = Annotated[float, _of_clients(min=0.01, help="Time to wait for a CONNACK, seconds.")]
ConnectSeconds = Annotated[
    float | None,
    _of_clients(min=0.1, help="Longest time to keep trying, seconds; default: 60, with --kit 30."),
]
Hold = Annotated[
    float,
    _of_clients(
        min=0.0, help="connect: time that connections stay after the last attempt, seconds."
    ),
]
Durable = Annotated[bool, _of_clients("--durable", help="Use sessions that the broker stores.")]

UserName = Annotated[
    str | None,
    _of_access(
        "--user",
        help="User as which clients connect; {n} in it, and in its password, is the number of the "
        f"client. Password: --password-file, or the variable {PASSWORD}.",
    ),
]
PasswordFile = Annotated[Path | None, _of_access(help="File whose first line is the password.")]
UsersFile = Annotated[
    Path | None,
    _of_access("--users", help="File with a line NAME:PASSWORD for each user; clients take turns."),
]
CaFile = Annotated[
    Path | None,
    _of_access("--cafile", help="Certificates that sign the broker's; default: the system's."),
]
Cert = Annotated[Path | None, _of_access(help="Certificate of all clients, PEM.")]
Key = Annotated[Path | None, _of_access(help="Key of this certificate; default: in the same file.")]

Seconds = Annotated[float, _of_messages(min=0.1, help="Time to publish, seconds.")]
Qos = Annotated[int, _of_messages(min=0, max=2, help="QoS.")]
Payload = Annotated[int, _of_messages(min=16, max=1_000_000, help="Payload size, bytes.")]
Outstanding = Annotated[
    int,
    _of_messages(min=1, max=65_535, help="Unacknowledged messages of a publisher, QoS 1 and 2."),
]
Backlog = Annotated[
    int,
    _of_messages(
        min=1,
        help="Undelivered messages per subscriber, any QoS; unbounded in slow-subscriber.",
    ),
]
Rate = Annotated[
    float | None,
    _of_messages(
        min=0.001, help="Messages per second of a publisher; default: as fast as the bounds allow."
    ),
]

Slow = Annotated[int, _of_slowness(min=0, help="Subscribers that read slowly.")]
SlowRate = Annotated[
    int, _of_slowness(min=0, help="Bytes per second that each slow subscriber reads.")
]
CatchUp = Annotated[
    float,
    _of_slowness(
        min=0.1,
        help="Time to read at full speed after the last PUBLISH, seconds.",
    ),
]

IsKit = Annotated[
    bool,
    _of_kit(
        "--kit",
        help="Run a series of experiments, each with a verdict: connect storm, retry storm, slow "
        "subscriber, flood with pings, quiet clients beside a flood, wide fan-out, restart. It "
        "uses --clients, --version, --connect-seconds and the options of access, no other option "
        "of storms.",
    ),
]
IsComparison = Annotated[
    bool, _of_kit("--compare", help="Show reports of --kit side by side: --compare A.json B.json")
]
Only = Annotated[
    str,
    _of_kit(
        metavar="NAMES",
        help="Experiments, comma-separated, as connect-storm,restart; default: all.",
    ),
]
RestartCommand = Annotated[
    str | None,
    _of_kit(
        metavar="COMMAND",
        help="Shell command that restarts the broker and returns; without it the restart "
        "experiment is skipped.",
    ),
]
Name = Annotated[str, _of_kit(help="Name of the broker in reports; default: its address.")]
Pid = Annotated[
    list[int] | None,
    _of_kit(help="Process of a local broker whose memory is sampled; repeatable."),
]

HtmlTo = Annotated[Path | None, _of_result("--html", help="Write the scoreboard, one HTML page.")]
JsonTo = Annotated[
    Path | None, _of_result("--json", help="Write the result; - for standard output.")
]
Seed = Annotated[int, _of_result(help="Random seed of the retry jitter.")]
