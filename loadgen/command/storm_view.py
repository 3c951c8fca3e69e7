"""The views of `flowguard storm`: one live screen while it runs, tables at the end."""

import trio
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowguard.types import ReasonCode
from loadgen.storm import ConnectTally, Crowd, LatencyHistogram, Traffic, TrafficTally
from loadgen.storm.tally import SHARES

FRAME_S = 0.25
PLAIN_S = 5.0
UNDELIVERED = "acknowledged, undelivered"
DROPS = "dropped at full queues, or lost"


async def watch(running: Crowd | Traffic, title: str, console: Console) -> None:
    """Show progress until cancelled: a live screen, or without a terminal a line every few
    seconds."""
    started_s = trio.current_time()
    rates = _Rates()
    rates.sample(running, started_s)
    if not console.is_terminal:
        while True:
            await trio.sleep(PLAIN_S)
            rates.sample(running, trio.current_time())
            console.print(_line(running, rates, trio.current_time() - started_s), style="dim")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            now_s = trio.current_time()
            rates.sample(running, now_s)
            live.update(_screen(running, title, rates, now_s - started_s), refresh=True)
            await trio.sleep(FRAME_S)


def show_result(finished: Crowd | Traffic, title: str, console: Console) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    console.print(_connects(_connect_tally(finished)))
    if isinstance(finished, Traffic):
        if finished.tally.sent == 0:
            console.print(Text(f"No message was sent: {_why_none(finished.tally)}.", style="red"))
        else:
            console.print(_messages(finished.tally))
            if finished.plan.slow:
                console.print(_slowness(finished.tally))


def _why_none(tally: TrafficTally) -> str:
    if tally.subscribe_refusals:
        return f"subscriptions were refused, {_codes(tally.subscribe_refusals)}"
    return "not all clients got in and subscribed"


def _connect_tally(running: Crowd | Traffic) -> ConnectTally:
    return running.crowd.tally if isinstance(running, Traffic) else running.tally


class _Rates:
    def __init__(self) -> None:
        self._at_s = 0.0
        self._counts = (0, 0, 0)
        self.attempts = self.sent = self.received = 0.0

    def sample(self, running: Crowd | Traffic, now_s: float) -> None:
        tally = running.tally if isinstance(running, Traffic) else TrafficTally()
        counts = (_connect_tally(running).attempts, tally.sent, tally.received)
        passed_s = max(1e-3, now_s - self._at_s)
        if self._at_s:
            self.attempts, self.sent, self.received = (
                (new - old) / passed_s for new, old in zip(counts, self._counts, strict=True)
            )
        self._at_s, self._counts = now_s, counts


def _line(running: Crowd | Traffic, rates: _Rates, elapsed_s: float) -> str:
    tally = _connect_tally(running)
    text = (
        f"{elapsed_s:5.0f} s  connected {tally.connected:,}/{tally.clients:,}"
        f"  attempts {tally.attempts:,}  busy {tally.busy:,}"
    )
    if isinstance(running, Traffic):
        text += f"  sent/s {rates.sent:,.0f}  received/s {rates.received:,.0f}"
    return text


def _screen(
    running: Crowd | Traffic, title: str, rates: _Rates, elapsed_s: float
) -> RenderableType:
    tally = _connect_tally(running)
    heading = Text.assemble((title, "bold"), f"  {elapsed_s:.0f} s   Ctrl-C: end and show result")
    grid = _with_columns(Table.grid(padding=(0, 2)), 18, 16)
    width = 40
    filled = round(width * tally.connected / max(1, tally.clients))
    bar = Text.assemble(("━" * filled, "green"), ("━" * (width - filled), "bright_black"))
    grid.add_row("connected", f"{tally.connected:,} of {tally.clients:,}", bar)
    grid.add_row("attempts", f"{tally.attempts:,}", f"{rates.attempts:,.0f} per second")
    grid.add_row("told to come back", f"{tally.busy:,}", "CONNACK 137, or 3 in 3.1.1")
    grid.add_row("failed otherwise", f"{_failures(tally):,}", _failure_words(tally) or "—")
    grid.add_row("time to connected", _ms(tally.to_connected, 50), _p99(tally.to_connected))
    if isinstance(running, Traffic):
        messages = running.tally
        grid.add_row("sent", f"{messages.sent:,}", f"{rates.sent:,.0f} per second")
        grid.add_row("received", f"{messages.received:,}", f"{rates.received:,.0f} per second")
        grid.add_row("delivery", _ms(messages.delivery, 50), _p99(messages.delivery))
        grid.add_row(
            "acknowledgement", _ms(messages.acknowledgement, 50), _p99(messages.acknowledgement)
        )
    return Group(heading, Text(), grid)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    return _with_columns(table, 26)


def _with_columns(table: Table, label_width: int, value_width: int | None = None) -> Table:
    # Only the last column shrinks: rich would crop a column with a minimum width.
    table.add_column(style="cyan", min_width=label_width, no_wrap=True)
    table.add_column(justify="right", min_width=value_width, no_wrap=True)
    table.add_column(style="dim")
    return table


def _connects(tally: ConnectTally) -> Table:
    table = _table("connections")
    table.add_row("clients", f"{tally.clients:,}", "")
    table.add_row("connected", f"{tally.connected:,}", "and stayed until the end")
    table.add_row("told 137 (or 3), came back", f"{tally.came_back:,}", f"{tally.busy:,} times")
    for count, name, what in (
        (tally.gave_up, "gave up", ""),
        (tally.trying, "still trying", ""),
        (tally.lost, "lost after CONNACK", _codes(tally.ended)),
    ):
        if count:
            table.add_row(Text(name, style="red"), f"{count:,}", what)
    failures = _failures(tally)
    table.add_row(
        Text("attempts that failed", style="red" if failures else ""),
        f"{failures:,}",
        _failure_words(tally) or "no reset, no timeout, no other refusal",
    )
    mean = tally.attempts / max(1, tally.clients)
    table.add_row("attempts per client", f"{mean:.2f}", f"at most {tally.attempts_max}")
    shares = "\n".join(_share(tally, percent) for percent in SHARES[1:])
    table.add_row("from the start", _share(tally, SHARES[0]), shares)
    table.add_row("time to connected", _ms(tally.to_connected, 50), _p99(tally.to_connected))
    table.add_row("answer to one attempt", _ms(tally.answer, 50), _p99(tally.answer))
    return table


def _messages(tally: TrafficTally) -> Table:
    table = _table("messages")
    seconds = max(1e-9, tally.seconds)
    table.add_row("sent", f"{tally.sent:,}", f"{tally.sent / seconds:,.0f} per second")
    table.add_row("received", f"{tally.received:,}", f"{tally.received / seconds:,.0f} per second")
    table.add_row("missing", f"{tally.missing:,}", f"of {tally.expected:,} deliveries")
    lost = "red" if tally.acknowledged_lost else ""
    table.add_row(Text(UNDELIVERED, style=lost), f"{tally.acknowledged_lost:,}", DROPS)
    for count, name, what in (
        (tally.refused, "refused", _codes(tally.refusals)),
        (tally.duplicates, "duplicates", ""),
        (tally.strays, "strays", "from another publisher"),
    ):
        if count:
            table.add_row(name, f"{count:,}", what)
    if tally.acknowledgement.count:
        latencies = tally.acknowledgement
        table.add_row("acknowledgement", _ms(latencies, 50), _p99(latencies))
    table.add_row("delivery", _ms(tally.delivery, 50), _p99(tally.delivery))
    return table


def _slowness(tally: TrafficTally) -> Table:
    table = _table("slow subscribers")
    table.add_row("received", f"{tally.slow_received:,}", "")
    lost = "red" if tally.slow_lost else ""
    table.add_row(Text(UNDELIVERED, style=lost), f"{tally.slow_lost:,}", DROPS)
    table.add_row("longest silence", f"{tally.silence_s:,.1f} s", "without any acknowledgement")
    table.add_row("caught up after", f"{tally.catch_up_s:,.1f} s", "from the last PUBLISH")
    return table


def _failures(tally: ConnectTally) -> int:
    return sum(tally.refused.values()) + sum(tally.failures.values())


def _failure_words(tally: ConnectTally) -> str:
    words = [f"{count:,} {name}" for name, count in tally.failures.items() if count]
    if tally.layer_fault:
        words.append(f"the last one: {tally.layer_fault}")
    if tally.refused:
        words.append(f"refused: {_codes(tally.refused)}")
    return ", ".join(words)


def _codes(codes: dict[int, int]) -> str:
    """Return counts with reason codes and their names: `12 x 0x87 not authorized`."""
    return ", ".join(f"{count:,} x 0x{code:02x} {_name(code)}" for code, count in codes.items())


def _name(code: int) -> str:
    return ReasonCode(code).name.replace("_", " ").lower()


def _share(tally: ConnectTally, percent: int) -> str:
    """Return when this share of all clients was connected."""
    after_s = tally.share_in_s(percent)
    return f"{percent} % in " + ("never" if after_s is None else f"after {after_s:,.3g} s")


def _ms(latencies: LatencyHistogram, percent: float) -> str:
    value_s = latencies.percentile_s(percent)
    return "—" if value_s is None else f"{value_s * 1e3:,.1f} ms"


def _p99(latencies: LatencyHistogram) -> str:
    return f"p99 {_ms(latencies, 99)}, max {_ms(latencies, 100)}"
