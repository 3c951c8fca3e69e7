"""`flowguard publish` and `flowguard subscribe`: test messages, at any broker with MQTT 5."""

import json
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from flowguard.cli.console import refused, shown
from flowguard.cli.remote.drain import seconds_of
from flowguard.codec.packets import (
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flowguard.errors import ConfigError
from flowguard.routing import has_wildcard, valid_filter
from flowguard.types import Publish, ReasonCode, SubscriptionOptions
from loadgen.command.access import PASSWORD, access_of
from loadgen.command.one_client import ClientError, OneClient, code_text

STDIN: Final = "-"
FAILURE: Final = 0x80
"""The lowest reason code of a failure."""

Broker = Annotated[
    str,
    typer.Option("--broker", metavar="ADDRESS", help="mqtt://HOST:PORT, or mqtts, ws or wss."),
]
ClientId = Annotated[str, typer.Option("--client", help="Client id; default: the broker's choice.")]
UserName = Annotated[
    str | None, typer.Option("--user", help=f"User; password: --password-file, or {PASSWORD}.")
]
PasswordFile = Annotated[Path | None, typer.Option(help="File whose first line is the password.")]
CaFile = Annotated[
    Path | None, typer.Option("--cafile", help="Certificates that sign the broker's, PEM.")
]
Cert = Annotated[Path | None, typer.Option(help="Certificate of the client, PEM.")]
Key = Annotated[Path | None, typer.Option(help="Key of this certificate.")]
Qos = Annotated[int, typer.Option(min=0, max=2, help="QoS.")]
LOCAL: Final = "mqtt://127.0.0.1:1883"


def publish(
    topic: Annotated[str, typer.Argument(help="Topic.")],
    payload: Annotated[str, typer.Argument(help="Text, or - for standard input.")],
    broker: Broker = LOCAL,
    qos: Qos = 1,
    retain: Annotated[bool, typer.Option("--retain", help="Retain the message.")] = False,
    client: ClientId = "",
    user: UserName = None,
    password_file: PasswordFile = None,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Publish a message, and report what the broker answers.

    The exit code is 1 if the broker rejects the message or does not answer.
    """
    if has_wildcard(topic) or not valid_filter(topic):
        raise typer.BadParameter(f"{topic!r} is no topic of a message")
    data = sys.stdin.buffer.read() if payload == STDIN else payload.encode()
    with _client("publish", broker, client, user, password_file, cafile, cert, key) as one:
        one.send(Publish(topic, data, qos, retain, packet_id=1 if qos else 0))
        code = 0
        if qos:
            code = one.answer(Puback if qos == 1 else Pubrec).reason_code
            if qos == 2 and code < FAILURE:
                one.send(Pubrel(1))
                one.answer(Pubcomp)
        if code >= FAILURE:
            raise ClientError(f"the broker rejects the message: {code_text(code)}")
        one.leave()
    outcome = "acknowledged" if qos else "sent; QoS 0 has no acknowledgement"
    if code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
        outcome += "; no client has subscribed to it"
    typer.echo(f"published to {shown(topic)}: {outcome}")


def subscribe(
    filter: Annotated[str, typer.Argument(help="Filter with + and #, or a topic.")],
    broker: Broker = LOCAL,
    qos: Qos = 1,
    count: Annotated[int, typer.Option(min=0, help="Messages to show; 0: no limit.")] = 0,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="End after 30s, 5m or 1h; default: never.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    client: ClientId = "",
    user: UserName = None,
    password_file: PasswordFile = None,
    cafile: CaFile = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Subscribe to a filter, and print each message.

    Ctrl-C ends it.

    The exit code is 1 if the broker rejects the filter, or if `--timeout` ends it before `--count`
    messages.
    """
    if not valid_filter(filter):
        raise typer.BadParameter(f"{filter!r} is no topic filter")
    until_s = time.monotonic() + seconds_of(timeout) if timeout else None
    left = count
    with _client("subscribe", broker, client, user, password_file, cafile, cert, key) as one:
        one.send(Subscribe(1, ((filter, SubscriptionOptions(qos)),)))
        (code,) = one.answer(Suback).reason_codes
        if code >= FAILURE:
            raise ClientError(f"the broker rejects the filter: {code_text(code)}")
        typer.echo(f"subscribed to {shown(filter)} with QoS {code}", err=True)
        for message in _messages(one, until_s):
            typer.echo(_json(message) if as_json else _line(message))
            left -= 1
            if not left:
                break
        one.leave()
    if left > 0:
        raise refused(f"flowguard subscribe: {count - left} of {count} messages after {timeout}")


def _messages(one: OneClient, until_s: float | None) -> Iterator[Publish]:
    """Yield and acknowledge messages until then. Raises ClientError."""
    while (packet := one.next(until_s)) is not None:
        if isinstance(packet, Publish):
            if packet.qos:
                answer = Puback if packet.qos == 1 else Pubrec
                one.send(answer(packet.packet_id))
            yield packet
        elif isinstance(packet, Pubrel):
            one.send(Pubcomp(packet.packet_id))


def _line(message: Publish) -> str:
    text = shown(message.payload.decode(errors="backslashreplace"))
    retained = " (retained)" if message.retain else ""
    return f"{shown(message.topic)}{retained} {text}"


def _json(message: Publish) -> str:
    said: dict[str, object] = {"topic": message.topic, "qos": message.qos, "retain": message.retain}
    try:
        said["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        said["payload_base64"] = b64encode(message.payload).decode()
    return json.dumps(said)


@contextmanager
def _client(
    command: str,
    broker: str,
    client_id: str,
    user: str | None,
    password_file: Path | None,
    cafile: Path | None,
    cert: Path | None,
    key: Path | None,
) -> Iterator[OneClient]:
    """Connect, and exit with a reason if something fails."""
    try:
        address, access = access_of(user, password_file, None, cafile, cert, key, broker)
        with OneClient(address, access) as one:
            one.connect(client_id)
            yield one
    except (ClientError, ConfigError) as error:
        raise refused(f"flowguard {command}: {shown(str(error))}") from error
    except KeyboardInterrupt:
        raise typer.Exit from None
