"""`flowguard reload`: a running broker reads certificates, users, keys and rules again."""

import json
from typing import Final

import typer

from flowguard.cli.console import AsJson, refused
from flowguard.cli.remote.answers import understood
from flowguard.cli.remote.ask import DEFAULT_URL, HINTS, Url, ask, needs_answer
from flowguard.lines import count

READING_S: Final = 60.0
"""Time-out of the request, seconds: the files may be large or on a slow disk."""


def reload(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Reload certificates, users, keys and rules, as SIGHUP does.

    Connections stay. If a file is invalid nothing changes, and the exit code is 1.
    """
    # Imported on demand, because it takes a tenth of a second that --help does not need.
    from flowguard.ops.web.reload import Reloaded

    with needs_answer("reload"):
        code, answer = ask(url, "/reload", {}, READING_S)
        if code != 200 and isinstance(answer, dict):
            why = answer.get("error") or f"status {code}"
            raise refused(f"flowguard reload: nothing has changed: {why}", HINTS.get(code, ""))
        read = understood(url, code, answer, Reloaded)
    if as_json:
        typer.echo(json.dumps(read))
        return
    typer.echo(
        f"reloaded: {count(read['certificates'], 'certificate')}, {count(read['users'], 'user')}, "
        f"{count(read['keys'], 'token key')}, {count(read['roles'], 'role')}"
    )
    if read.get("limits"):
        typer.echo(f"limits changed: {', '.join(read['limits'])}")
    if read["needs_restart"]:
        typer.echo(
            f"changed, but in force only after a restart: {', '.join(read['needs_restart'])}"
        )
