"""The command line; `flowguard.cli.plugins` finds the commands."""

from typing import Annotated

import typer

from flowguard import __version__, build
from flowguard.cli.plugins import HELP, Commands

app = typer.Typer(
    name="flowguard",
    cls=Commands,
    help="MQTT broker with overload protection: MQTT 5.0, 3.1.1 and 3.1.",
    no_args_is_help=True,
    context_settings={"help_option_names": HELP},
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flowguard {__version__} ({build.name()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """MQTT broker with overload protection: MQTT 5.0, 3.1.1 and 3.1."""
