"""The commands: flowguard's own, and those of other packages as entry points `flowguard.commands`.

A command is imported when it is called, or listed by `--help`; until then only its name is known.
So `serve` does not import what only `storm` needs. (`Any` stands for types of click, which typer
bundles under another name.)
"""

import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, requires
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from flowguard.app.extras import DISTRIBUTION, needs_extra

GROUP: Final = "flowguard.commands"
PLUGGED_IN: Final = "Before other brokers, and on data"
"""Panel of the commands of other packages."""
PANELS: Final = {
    "A broker": {
        "serve": "flowguard.cli.serve:serve",
        "settings": "flowguard.cli.settings:settings",
        "check": "flowguard.cli.check:check",
        "capacity": "flowguard.cli.capacity.command:capacity",
        "passwd": "flowguard.cli.passwd:passwd",
        "import": "store_tools.mosquitto.command:import_conf",
        "store": "store_tools.command.store:store",
    },
    "A running broker": {
        "top": "flowguard.cli.remote.top:top",
        "explain": "flowguard.cli.remote.explain:explain",
        "clients": "flowguard.cli.remote.lists.clients:clients",
        "subscriptions": "flowguard.cli.remote.lists.subscriptions:subscriptions",
        "topics": "flowguard.cli.remote.lists.topics:topics",
        "retained": "flowguard.cli.remote.lists.retained:retained",
        "trace": "flowguard.cli.remote.trace:trace",
        "acl": "flowguard.cli.remote.acl:acl",
        "publish": "loadgen.command.messages:publish",
        "subscribe": "loadgen.command.messages:subscribe",
        "log": "flowguard.cli.remote.log:log",
        "reload": "flowguard.cli.remote.reload:reload",
        "drain": "flowguard.cli.remote.drain:drain",
        "cluster": "flowguard.cli.remote.cluster:cluster",
    },
    "Load": {
        "demo": "loadgen.demo.demo:demo",
        "storm": "loadgen.command.storm:storm",
    },
}
"""Own commands in the order of `--help`, by its panels: each is a function or a group of commands.
"""
OWN: Final = {
    name: EntryPoint(name, place, GROUP)
    for places in PANELS.values()
    for name, place in places.items()
}
HIDDEN: Final = {"worker": EntryPoint("worker", "flowguard.cli.worker:worker", GROUP)}
"""A command that only a program starts: `serve --workers` does."""
HELP: Final = ["-h", "--help"]
PLACEHOLDERS: Final = {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}
"""Placeholders in `--help` for values of options without a word of their own, by type. Those of
texts are the last word of the option."""
_REQUIREMENT: Final = re.compile(r"""([\w.-]+).*;.*\bextra == ["']([\w-]+)["']""")


class Commands(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        """Return the options of `flowguard` itself."""
        return _with_placeholders(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, own commands first."""
        return [*OWN, *sorted(_plugged_in().keys() - OWN)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; one that cannot be imported prints what it needs."""
        plug = OWN.get(cmd_name) or HIDDEN.get(cmd_name) or _plugged_in().get(cmd_name)
        if plug is None:
            names: Any = dict.fromkeys(self.list_commands(ctx))
            self.commands = names  # typer suggests the nearest of these names.
            return None
        try:
            command = _readable(_with_token(_command_at(plug)))
        except ModuleNotFoundError as error:
            command = _command_without(error, plug)
        panels = [panel for panel, names in PANELS.items() if cmd_name in names]
        command.rich_help_panel = (*panels, PLUGGED_IN)[0]
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a package that only some options need may be missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            plug = _plugged_in().get(ctx.invoked_subcommand or "")
            _refuse(error, plug.extras if plug else ())


def needs(error: ModuleNotFoundError, extras_of_plug: Sequence[str] = ()) -> str | None:
    """Return the command that installs the extra with the missing package, or None.

    `extras_of_plug` are the extras in an entry point: `command = "module:function [extra]"`.
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
    else:  # The package may be a dependency of another missing package of the extra.
        bringing = [extra for extra in of_plug if not all(map(find_spec, extras[extra]))]
    if not bringing:
        return None
    least = min(bringing, key=lambda extra: len(extras[extra]))
    return needs_extra(least)


def _command_at(plug: EntryPoint) -> Any:
    what = plug.load()
    if isinstance(what, typer.Typer):
        command = get_command(what)
        command.name = plug.name
        return command
    return _command_of(what, plug.name)


def _command_of(function: Any, name: str) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
    app.command(name)(function)
    return get_command(app)


def _with_token(command: Any) -> Any:
    """Give --token-file to each command that asks the HTTP port of a broker."""
    for each in getattr(command, "commands", {}).values():
        _with_token(each)
    if any(param.name == "url" for param in command.params):
        from flowguard.cli.remote.ask import token_option  # `serve` does not need it.

        command.params += [
            each for each in _command_of(token_option, "").params if each.name != "help"
        ]
    return command


def _readable(command: Any) -> Any:
    """Give a command, and those below it, `-h`, placeholders, and help of the terminal's width.

    Without the last one, paragraphs of the help would wrap as in the source.
    """
    if command.help:
        paragraphs = cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(part.replace("\n", " ") for part in paragraphs)
    context = command.context_class(command, help_option_names=HELP)
    _with_placeholders(command.get_params(context))
    for inner in getattr(command, "commands", {}).values():
        _readable(inner)
    return command


def _with_placeholders(params: list[Any]) -> list[Any]:
    """Name the values of options in words of users, not by types of Python."""
    for param in params:
        kind = param.type_descriptor.annotation
        kind = (*get_args(kind), kind)[0]
        if param.param_type_name == "argument":
            param.metavar = param.metavar or param.name.upper()
            param.display_type_rich = lambda ctx: None  # The name says enough.
        elif param.metavar is None and kind in (str, *PLACEHOLDERS):
            param.metavar = PLACEHOLDERS.get(kind, param.name.rpartition("_")[2].upper())
    return params


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
