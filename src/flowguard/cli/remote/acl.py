"""`flowguard acl`: which rule lets a client publish or subscribe, or does not?"""

import json
import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flowguard.app.reloadable_files import rules_of
from flowguard.cli.console import AsJson, command_group, refused, shown
from flowguard.cli.remote.ask import DEFAULT_URL, Url
from flowguard.cli.remote.lists.pages import asked
from flowguard.cli.settings import load
from flowguard.errors import ConfigError
from flowguard.ops.web.ask.acl import ACL_TEST, AclAnswer, AclQuestion, verdict_of

acl = command_group("Test the rules for topics.")


class Action(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@acl.command("test")
def judge(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="publish or subscribe.")],
    topic: Annotated[str, typer.Argument(help="Topic, or the filter of a subscription.")],
    client: Annotated[str, typer.Option(metavar="CLIENT_ID", help="Client identifier.")],
    user: Annotated[
        str | None, typer.Option(help="User; default: that of the client's session, or none.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="Role that a token gives to the user; repeatable.")
    ] = None,
    qos: Annotated[int, typer.Option(min=0, max=2, help="QoS of the message.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="The message is retained.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="Read the rules of this configuration; asks no broker.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Tell whether a client may publish or subscribe, and the rule that decides.

    It asks a running broker, or reads the files of `--config`. The exit code is 1 if it is denied.
    """
    question = AclQuestion(client_id=client, action=action.value, topic=topic)
    question |= AclQuestion(qos=qos, retain=retain, roles=role or [])  # type: ignore[typeddict-item]
    if user is not None:
        question["user"] = user
    answer: AclAnswer = (
        asked("acl test", url, ACL_TEST, AclAnswer, question)
        if config is None
        else _offline(question, config)
    )
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        granted = answer["qos_max"]
        at_most = "" if granted is None else f" up to QoS {granted}"
        decision = f"allowed{at_most}" if answer["allowed"] else "denied"
        typer.echo(f"{decision}: {shown(answer['rule'])}")
    if not answer["allowed"]:
        raise typer.Exit(1)


def _offline(question: AclQuestion, config: Path) -> AclAnswer:
    """Answer by the rules that a broker with this configuration would have."""
    try:
        rules = rules_of(load(config, os.environ).settings.network)
        verdict = verdict_of(question, rules)
    except (ConfigError, ValueError) as error:
        raise refused("flowguard acl test: no answer", str(error), 2) from error
    return AclAnswer(**{**asdict(verdict), "roles": list(verdict.roles)})  # type: ignore[typeddict-item]
