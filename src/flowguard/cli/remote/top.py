"""`flowguard top`: the pressure on a running broker and what it does against it, live."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowguard.cli.remote.answers import understood
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask, complain
from flowguard.cli.remote.top_screen import READ, StatusHistory, frame
from flowguard.ops.status import Status

FRAME_S = 1.0


def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="The broker's HTTP port.")] = (
        DEFAULT_URL
    ),
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
) -> None:
    """Watch a broker: load, limits, waiting clients, rejections and drops; Ctrl-C ends it.

    It prints one frame if the output is not a terminal.
    """
    console = Console(highlight=False)
    history = StatusHistory(url)
    try:
        history.add(_status(url))
        if once or not console.is_terminal:
            console.print(frame(history, console.width))
        else:
            _watch(history, console)
    except NoAnswer as error:
        raise complain("top", error, "http://HOST:PORT") from error


def _watch(history: StatusHistory, console: Console) -> None:
    """Show a frame a second until Ctrl-C; wait for a broker that is gone for a while."""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(frame(history, console.width), refresh=True)
                time.sleep(FRAME_S)
                try:
                    history.add(_status(history.url))
                except NoAnswer as error:
                    history.trouble = str(error)
    except KeyboardInterrupt:
        console.print(frame(history, console.width))
        console.print(Text("ended by Ctrl-C", style="dim"))


def _status(url: str) -> Status:
    code, answer = ask(url, "/status")
    if isinstance(answer, dict) and "workers" in answer:
        workers = f"{url.rstrip('/')}/workers/0"
        raise NoAnswer(f"{url}: it has several workers: watch one of them: flowguard top {workers}")
    return understood(url, code, answer, Status, READ)
