"""The commands of `flowguard`."""

from typing import Annotated

import typer

from flowguard import __version__, build
from flowguard.cli.check import check
from flowguard.cli.demo import demo
from flowguard.cli.explain import explain
from flowguard.cli.import_conf import import_conf
from flowguard.cli.passwd import passwd
from flowguard.cli.plugins import Commands
from flowguard.cli.reload import reload
from flowguard.cli.serve import serve
from flowguard.cli.settings import settings
from flowguard.cli.store import store
from flowguard.cli.storm import storm
from flowguard.cli.top import top

app = typer.Typer(
    name="flowguard",
    cls=Commands,
    help="An MQTT 5.0, 3.1.1 and 3.1 broker that survives crowds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(serve)
app.command()(top)
app.command()(explain)
app.command()(demo)
app.command()(storm)
app.command()(settings)
app.command()(check)
app.command()(reload)
app.command("import")(import_conf)
app.add_typer(passwd, name="passwd")
app.add_typer(store, name="store")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flowguard {__version__} ({build.name()})")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """An MQTT 5.0, 3.1.1 and 3.1 broker that survives crowds."""
