"""`flowguard store workers`: changes the number of workers of a data directory."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from flowguard.cli.console import plain
from flowguard.cli.log_lines import log_to_stderr
from flowguard.config import WORKERS_MAX, LogSettings
from flowguard.lines import count
from store_tools.command.parts import complaints, progress_bar


def workers(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Data directory; no broker may run on it.")
    ],
    number: Annotated[
        int, typer.Argument(metavar="N", min=1, max=WORKERS_MAX, help="New number of workers.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="NEW", help="The new directory.")],
) -> None:
    """Make a data directory for N workers; DATA stays as it is (docs/operate/workers.md)."""
    from store_tools.workers.move import move

    log_to_stderr(LogSettings(level="error"))
    console = plain()
    with complaints("workers"), progress_bar("moving sessions") as progress:
        found = move(data, number, out, progress=progress, tell=console.print)
    serve = f"flowguard serve --workers {number} --data {shlex.quote(str(out))}"
    console.print(
        f"{count(found.sessions, 'session')}, "
        f"{count(found.groups, 'shared subscription with a queue')}, "
        f"{count(found.entries, 'queued message')} and {found.retained:,} retained moved.\n"
        f"Start: {serve}\n"
        f"{data} is as before. Start it to go back, or delete it. Never start both."
    )
