"""The end of the demo: what happened, and whether the promise was kept."""

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadgen.demo.broker import CONNECT_BUFFER, CONNECTS_IN_PROCESS
from loadgen.demo.screen import DemoHistory


@dataclass(slots=True)
class DemoOutcome:
    """The broker's counts, and the results of both storms (None: a storm gave no result)."""

    history: DemoHistory
    traffic: dict[str, Any] | None
    crowd: dict[str, Any] | None

    def failures(self) -> list[str]:
        """Every way in which the promise was broken."""
        if self.traffic is None or self.crowd is None:
            return ["a load generator ended without a result"]
        both = (self.traffic, self.crowd)
        counts = {
            "connections lost": sum(result["lost"] for result in both),
            "resets": sum(result["resets"] for result in both),
            "attempts without an answer": sum(r["closed"] + r["timeouts"] for r in both),
            "clients that did not get in": sum(r["clients"] - r["connected"] for r in both),
            "acknowledged messages lost": self.traffic["acknowledged_lost"],
        }
        failures = [f"{what}: {count:,}" for what, count in counts.items() if count]
        if not self.traffic["sent"]:
            failures.append("nothing was published")
        return failures

    @property
    def windows(self) -> str:
        """A sentence on what windows did, if they did anything."""
        windows = [sample.window for sample in self.history.samples]
        if min(windows) == max(windows):
            return ""
        return f"Load went up, windows went down to {min(windows)}. "

    @property
    def promise_kept(self) -> bool:
        return not self.failures()


def show_summary(outcome: DemoOutcome, console: Console) -> None:
    """The table, the verdict, and where to look next."""
    console.print()
    if outcome.traffic is not None and outcome.crowd is not None:
        console.print(_table(outcome, outcome.traffic, outcome.crowd))
    for failure in outcome.failures():
        console.print(Text(f"promise broken: {failure}", style="bold red"))
    if outcome.promise_kept:
        console.print(
            f"[bold green]The crowd waited, no client was lost.[/] {outcome.windows}"
            "Everything acknowledged was delivered.\n"
            "Next: [bold]make serve[/] for a broker of your own, [bold].venv/bin/flowguard storm "
            "127.0.0.1:1883 connect[/] to try it, README.md for how it works.",
            highlight=False,
        )


def _table(outcome: DemoOutcome, traffic: dict[str, Any], crowd: dict[str, Any]) -> Table:
    samples = outcome.history.samples
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")

    def row(what: str, value: str, note: str, *, good: bool | None = None) -> None:
        colour = "" if good is None else "green" if good else "red"
        table.add_row(what, Text(value, style=colour), note)

    connected, clients = crowd["connected"], crowd["clients"]
    half_s, last_s = (crowd["connected_after_s"][share] for share in ("p50", "p100"))
    took = [f"half in {half_s:.1f} s"] if half_s is not None else []
    took += [f"all in {last_s:.1f} s"] if last_s is not None else []
    row(
        "clients connected",
        f"{connected:,} of {clients:,}",
        ", ".join(took),
        good=connected == clients,
    )
    row(
        "told 137, and came back",
        f"{crowd['came_back']:,}",
        f"{crowd['busy']:,} refusals, up to {crowd['attempts_max']} tries",
    )
    lost = traffic["lost"] + crowd["lost"]
    ends = sum(
        result[end] for result in (traffic, crowd) for end in ("resets", "closed", "timeouts")
    )
    row("connections lost", f"{lost:,}", "of clients that were connected", good=lost == 0)
    row("attempts without an answer", f"{ends:,}", "reset, closed, or too late", good=ends == 0)
    most = max(sample.in_process for sample in samples)
    row("CONNECTs in process, at most", f"{most}", f"limit {CONNECTS_IN_PROCESS}")
    most = max(sample.buffered for sample in samples)
    row("CONNECTs waiting, at most", f"{most}", f"limit {CONNECT_BUFFER}")
    row(
        "window per client",
        f"{min(sample.window for sample in samples)} to {max(s.window for s in samples)}",
        f"now {outcome.history.last.window}; pressure at most "
        f"{max(sample.pressure for sample in samples):.1f}",
    )
    row(
        "messages acknowledged",
        f"{traffic['acknowledged']:,}",
        f"{traffic['received']:,} delivered",
    )
    lost = traffic["acknowledged_lost"]
    row("messages lost", f"{lost:,}", "of those acknowledged", good=lost == 0)
    return table
