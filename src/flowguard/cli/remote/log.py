"""`flowguard log`: the levels of a running broker's log."""

import json
from typing import Annotated, Any

import typer

from flowguard.cli.console import AsJson, command_group, plain, refused
from flowguard.cli.remote.answers import turned_down
from flowguard.cli.remote.ask import DEFAULT_URL, Url, ask, needs_answer

log = command_group("Show or change the levels of a running broker's log.")


@log.command()
def show(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the lowest level that is logged of each kind of events."""
    levels = _asked("log show", url, None)
    if as_json:
        typer.echo(json.dumps(levels))
    else:
        _print(levels)


@log.command("set")
def set_level(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of events, as `show` lists.")],
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Change a level until the broker ends. Connections stay.

    KIND `level` is for all events without a level of their own.
    """
    _print(_asked("log set", url, {"kind": kind, "level": level}))


def _asked(command: str, url: str, body: object) -> dict[str, Any]:
    with needs_answer(command):
        code, answer = ask(url, "/log", body)
        if code in (400, 403) and isinstance(answer, dict):
            raise refused(f"flowguard {command}: {answer.get('error')}")
        if code != 200 or not isinstance(answer, dict):
            raise turned_down(url, code, answer)
        return answer


def _print(levels: dict[str, Any]) -> None:
    console = plain()
    for kind, level in levels.items():
        console.print(f"{kind:<16}{level}")
