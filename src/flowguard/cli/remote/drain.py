"""`flowguard drain`: a running broker disconnects its clients over a time, and ends."""

import re
import time
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flowguard.cli.console import plain
from flowguard.cli.remote.answers import turned_down
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, Url, ask, needs_answer

UNITS_S: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
POLL_S: Final = 1.0


def seconds_of(text: str) -> float:
    """Return the seconds of `90`, `90s`, `5m` or `1h`."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise typer.BadParameter("a number with s, m or h, as 5m")
    return float(found[1]) * UNITS_S[found[2]]


def drain(
    over: Annotated[
        str, typer.Option(metavar="TIME", help="Time until the last client: 90s, 5m or 1h.")
    ],
    url: Url = DEFAULT_URL,
) -> None:
    """End a broker or proxy slowly, client by client.

    New clients are rejected from the beginning. A second SIGTERM ends it at once. The command waits
    until it has ended; after Ctrl-C it drains on.
    """
    over_s = seconds_of(over)
    with needs_answer("drain"):
        clients, what = _clients(url)
        code, answer = ask(url, "/drain", {"over_s": over_s})
        if code != 200:
            raise turned_down(url, code, answer)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=plain(stderr=True, soft_wrap=False)) as progress:
        task = progress.add_task(f"{clients:,} clients", total=max(1, clients))
        while True:
            time.sleep(POLL_S)
            try:
                left, _ = _clients(url)
            except NoAnswer as error:
                if error.refused:
                    break
                continue  # It is busy with its end.
            progress.update(task, completed=clients - left, description=f"{left:,} clients")
        progress.update(task, completed=max(1, clients), description="0 clients")
    typer.echo(f"the {what} has ended; {clients:,} clients were connected")


def _clients(url: str) -> tuple[int, str]:
    """Return the number of connected clients, of all workers, and what serves them. Raises
    NoAnswer."""
    code, status = ask(url, "/status")
    if code != 200 or not isinstance(status, dict):
        raise turned_down(url, code, status)
    workers: list[Any] = status.get("workers", [status])
    connected = sum(each["clients"]["connected"] for each in workers if each is not None)
    return connected, "proxy" if "upstreams" in status else "broker"
