"""Commands of the front rooms: entry points of the group `flowguard.commands`.

A command is imported when it is called, or listed by `--help`; until then only its name is known.
(`Any` is click's, which typer brings along under a name of its own.)
"""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, requires
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

GROUP: Final = "flowguard.commands"
DISTRIBUTION: Final = "flowguard-mqtt"
"""What pip installs: `flowguard` alone is another project's name in the package registry."""
_REQUIREMENT: Final = re.compile(r"""([\w.-]+).*;.*\bextra == ["']([\w-]+)["']""")


class Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """Names, own ones first."""
        own = super().list_commands(ctx)
        return own + [name for name in sorted(_plugged_in()) if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; one that cannot be imported says what it needs."""
        command = super().get_command(ctx, cmd_name)
        plug = None if command else _plugged_in().get(cmd_name)
        if plug is None:
            return _flowing(command)
        app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
        try:
            app.command(cmd_name)(plug.load())
        except ModuleNotFoundError as error:
            return _command_without(error, plug)
        return _flowing(get_command(app))

    def invoke(self, ctx: Any) -> Any:
        """Run it; a package that only some options need may be missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            plug = _plugged_in().get(ctx.invoked_subcommand or "")
            _refuse(error, plug.extras if plug else ())


def needs(error: ModuleNotFoundError, extras_of_plug: Sequence[str] = ()) -> str | None:
    """The command that installs the extra which brings the missing package; None: none does.

    `extras_of_plug` are those that an entry point names: `command = "module:function [extra]"`.
    """
    missing = (error.name or "").partition(".")[0]
    extras: dict[str, list[str]] = {}
    for requirement in requires(DISTRIBUTION) or ():
        if found := _REQUIREMENT.match(requirement):
            extras.setdefault(found[2], []).append(found[1].lower().replace("-", "_"))
    of_plug = [extra for extra in extras_of_plug if extra in extras]
    bringing = [extra for extra, packages in extras.items() if missing in packages]
    if bringing:
        bringing = of_plug or bringing
    else:  # It may come with a package of the extra that is not there either.
        bringing = [extra for extra in of_plug if not all(map(find_spec, extras[extra]))]
    if not bringing:
        return None
    least = min(bringing, key=lambda extra: len(extras[extra]))
    return needs_extra(least)


def needs_extra(extra: str) -> str:
    """The line that says how to install what an extra brings."""
    return f"needs: {sys.executable} -m pip install '{DISTRIBUTION}[{extra}]'"


def _flowing(command: Any) -> Any:
    """Paragraphs of its help end their lines where the terminal does, not where the source does."""
    if command is not None and command.help:
        paragraphs = cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(part.replace("\n", " ") for part in paragraphs)
    return command


def _plugged_in() -> dict[str, EntryPoint]:
    return {plug.name: plug for plug in entry_points(group=GROUP)}


def _refuse(error: ModuleNotFoundError, extras_of_plug: Sequence[str] = ()) -> NoReturn:
    what = needs(error, extras_of_plug)
    if what is None:
        raise error
    typer.echo(what, err=True)
    raise typer.Exit(2) from error


def _command_without(error: ModuleNotFoundError, plug: EntryPoint) -> TyperCommand:
    what = needs(error, plug.extras)
    if what is None:
        raise error
    return TyperCommand(
        plug.name,
        callback=lambda: _refuse(error, plug.extras),
        help=what,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
