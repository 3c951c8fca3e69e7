"""The commands of `flowguard`."""

import typer

from flowguard.cli.demo import demo
from flowguard.cli.serve import serve
from flowguard.cli.settings import settings
from flowguard.cli.storm import storm

app = typer.Typer(
    name="flowguard",
    help="An MQTT 5.0 and 3.1.1 broker that survives crowds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(serve)
app.command()(demo)
app.command()(storm)
app.command()(settings)


@app.callback()
def _root() -> None:
    """An MQTT 5.0 and 3.1.1 broker that survives crowds."""
