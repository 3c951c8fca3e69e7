"""Output for people: texts may contain brackets, which are no markup, and are wrapped."""

from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command_group(help: str) -> typer.Typer:
    """Return a group of commands, which is one also with a single command."""
    group = typer.Typer(help=help, no_args_is_help=True, add_completion=False)
    group.callback()(lambda: None)
    return group


def plain(*, stderr: bool = False, soft_wrap: bool = True) -> Console:
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=soft_wrap)


def shown(text: str) -> str:
    """Return a text from outside with characters that control a terminal as escapes.

    A client id may contain ESC, line ends, and characters that change the direction of writing.
    """
    if text.isprintable():
        return text
    escaped = [c if c.isprintable() else repr(c)[1:-1] for c in text]
    return "".join(escaped)


def refused(what: str, why: str = "", code: int = 1) -> typer.Exit:
    """Print an error to standard error; `why`, or what to do, is a second line."""
    errors = plain(stderr=True)
    with suppress(OSError):  # The exit code matters even if the message cannot be written.
        errors.print(what, style="red")
        if why:
            errors.print(why)
    return typer.Exit(code)
