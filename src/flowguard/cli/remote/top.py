"""`flowguard top`: the pressure on a running broker and its reaction, live."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from flowguard.cli.remote.answers import understood
from flowguard.cli.remote.ask import DEFAULT_URL, NoAnswer, ask, needs_answer
from flowguard.cli.remote.top_screen import READ, StatusHistory, frame
from flowguard.cli.remote.top_workers import MachineHistory, machine_frame
from flowguard.ops.status import Status

FRAME_S = 1.0


def top(
    url: Annotated[str, typer.Argument(metavar="URL", help="The broker's HTTP port.")] = (
        DEFAULT_URL
    ),
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status once, as JSON, and exit.")
    ] = False,
) -> None:
    """Watch a broker: load, limits, waiting clients, drops.

    Ctrl-C ends it. It prints one frame if the output is not a terminal.
    """
    console = Console(highlight=False)
    screen = _Screen(url)
    with needs_answer("top", "http://HOST:PORT"):
        status = screen.ask()
        if as_json:
            typer.echo(json.dumps(status))
        elif once or not console.is_terminal:
            console.print(screen.frame(console.width))
        else:
            _watch(screen, console)


class _Screen:
    """The statuses of a broker, of one process or of several workers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._one = StatusHistory(url)
        self._all = MachineHistory(url)
        self._has_workers = False

    def ask(self) -> Any:
        """Get and return the next status, also of all workers. Raises NoAnswer."""
        url = self._url
        code, answer = ask(url, "/status")
        workers = answer.get("workers") if isinstance(answer, dict) else None
        self._has_workers = isinstance(workers, list)
        if isinstance(workers, list):
            self._all.add([each if each is None else _status(url, code, each) for each in workers])
        else:
            self._one.add(_status(url, code, answer))
        return answer

    def fail(self, error: NoAnswer) -> None:
        self._one.trouble = self._all.trouble = str(error)

    def frame(self, width: int) -> RenderableType:
        return machine_frame(self._all, width) if self._has_workers else frame(self._one, width)


def _watch(screen: _Screen, console: Console) -> None:
    """Show a frame per second until Ctrl-C; wait for a broker that stops for a while."""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(screen.frame(console.width), refresh=True)
                time.sleep(FRAME_S)
                try:
                    screen.ask()
                except NoAnswer as error:
                    screen.fail(error)
    except KeyboardInterrupt:
        console.print(screen.frame(console.width))
        console.print(Text("ended by Ctrl-C", style="dim"))


def _status(url: str, code: int, answer: object) -> Status:
    return understood(url, code, answer, Status, READ)
