"""The frame of `flowguard top` for several workers: a row per worker, and their sum."""

from collections.abc import Callable, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flowguard.cli.remote.top_screen import GROW_BELOW, StatusHistory, pressure_style
from flowguard.lines import count
from flowguard.ops.condition import progress
from flowguard.ops.status import Status

COLUMNS: Final = ("clients", "sessions", "in/s", "out/s", "dropped", "window", "pressure")


class MachineHistory:
    """The statuses of all workers; a worker that is down has none."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.workers: list[StatusHistory] = []
        self.trouble = ""
        """The reason why the last request was not answered, or ""."""

    def add(self, statuses: Sequence[Status | None]) -> None:
        self.trouble = ""
        if len(statuses) != len(self.workers):
            url = self.url.rstrip("/")
            self.workers = [StatusHistory(f"{url}/workers/{k}") for k in range(len(statuses))]
        for history, status in zip(self.workers, statuses, strict=True):
            if status is None:
                history.now = history.before = None
            else:
                history.add(status)


def machine_frame(history: MachineHistory, width: int) -> RenderableType:
    """Return the whole picture, `width` columns wide at most."""
    heading = Text.assemble((" flowguard top ", "bold reverse"), "  ", (history.url, "dim"))
    down = sum(each.now is None for each in history.workers)
    if down:
        heading.append(f"  {count(down, 'worker')} down", "bold red")
    if history.trouble:
        heading = Text.assemble((" no answer ", "bold reverse red"), f"  {history.trouble}")
    heading.truncate(width)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("worker")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for index, worker in enumerate(history.workers):
        table.add_row(str(index), *_cells(worker))
    table.add_section()
    table.add_row("all", *_sums(history.workers))
    one = Text(f"One worker: flowguard top {history.url.rstrip('/')}/workers/0", style="dim")
    words = progress(each.now for each in history.workers if each.now is not None)
    drain = [Text(f"drain  {words}", style="yellow")] if words else []
    return Group(heading, *drain, table, one)


def _cells(worker: StatusHistory) -> list[Text]:
    status = worker.now
    if status is None:
        return [Text("down", style="bold red")]
    window, pressure = status["window"], status["pressure"]
    value = pressure["value"]
    cause = f" {pressure['cause']}" if pressure["cause"] and value >= GROW_BELOW else ""
    return [
        *_sums([worker]),
        Text("closed" if window["closed"] else f"{window['granted']:.3g}"),
        Text(f"{value:.2f}{cause}", style=pressure_style(value)),
    ]


def _sums(workers: Sequence[StatusHistory]) -> list[Text]:
    """Return the cells that show a sum of the broker."""
    serving = [each.now for each in workers if each.now is not None]
    return [
        Text(f"{sum(each['clients']['connected'] for each in serving):,}"),
        Text(f"{sum(each['clients'].get('sessions', 0) for each in serving):,}"),
        _rate(workers, lambda status: status["traffic"]["publish_received"]),
        _rate(workers, lambda status: status["traffic"]["publish_sent"]),
        Text(f"{sum(sum(each['dropped'].values()) for each in serving):,}"),
    ]


def _rate(workers: Sequence[StatusHistory], counter: Callable[[Status], int]) -> Text:
    """Return the growth of a counter per second, or nothing after the first status."""
    rates = [
        each.rate(counter(each.now), counter(each.before))
        for each in workers
        if each.now is not None and each.before is not None
    ]
    known = [rate for rate in rates if rate is not None]
    return Text(f"{sum(known):,.0f}" if known else "")
