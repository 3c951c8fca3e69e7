"""View: the results of runs of one scenario, side by side, on a screen of 80 columns."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import ceil, inf, log
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from simulations.results.run import BEYOND, NodeSample, Summary, WorldSample
from simulations.scenario import Scenario

COLUMNS_MAX: Final = 4
"""Maximum number of runs side by side; more of them go below."""
LABEL: Final = 18
STRIP: Final = 45
MARKS: Final = 5
"""Number of instants named above a strip."""
BLOCKS: Final = " ▁▂▃▄▅▆▇█"
PRESSURE_TOP: Final = 4.0
WINDOW_TOP: Final = 100.0
NODES_MAX: Final = 6
"""Maximum number of nodes with a strip of their own, if one run is shown."""
ABSENT: Final = "-"
DOWN: Final = "x"

Number = float | None
Row = tuple[str, Callable[[Summary], Number], Callable[[float], str]]
"""Label, value, and the function that writes the value."""
Level = Callable[[WorldSample], Number]
"""A function with values from 0 to 1, or None if a node is down and there is nothing to measure."""


def screen(scenario: Scenario, groups: Sequence[Sequence[Summary]]) -> RenderableType:
    """Return the screen. A group holds the runs of one policy: the table shows their mean, charts
    the first."""
    parts: list[RenderableType] = []
    for start in range(0, len(groups), COLUMNS_MAX):
        parts.append(_table(scenario, groups[start : start + COLUMNS_MAX]))
    runs = [group[0] for group in groups]
    parts += [Text(), *_charts(scenario, runs)]
    return Group(*parts)


# --- the table -------------------------------------------------------------------------------


def _table(scenario: Scenario, groups: Sequence[Sequence[Summary]]) -> Table:
    seeds = len(groups[0])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("" if seeds == 1 else f"mean of {seeds} seeds", no_wrap=True)
    for group in groups:
        table.add_column(group[0].policy, justify="right", no_wrap=True)
    for label, texts in _rows(scenario, groups):
        if any(text != ABSENT for text in texts):
            table.add_row(Text(label), *texts)
    return table


def _rows(
    scenario: Scenario, groups: Sequence[Sequence[Summary]]
) -> Iterator[tuple[str, list[str]]]:
    publishes = any(run.due_count for group in groups for run in group)
    rows: list[Row] = [
        ("connected", lambda run: run.connected_share, percent),
        ("  50 % after", lambda run: run.connected_50_s, seconds),
        ("  99 % after", lambda run: run.connected_99_s, seconds),
        ("  100 % after", lambda run: run.connected_100_s, seconds),
        ("  99 % back after", lambda run: run.back_s or None, seconds),
        ("attempts per client", lambda run: run.attempts_per_client, lambda n: f"{n:.2f}"),
        ("  declined", lambda run: run.declined_count, count),
        ("  wasted", lambda run: run.wasted_count, count),
        ("gave up", lambda run: run.given_up_count or None, count),
        ("messages in time", lambda run: run.in_time_share, percent),
        *_by_population(scenario),
        ("  acknowledged", lambda run: run.acknowledged_count if publishes else None, count),
        ("  PUBACK p99", lambda run: run.acknowledged_p99_s, seconds),
        ("  delivery p99", lambda run: run.delivered_p99_s, seconds),
        ("goodput after/before", lambda run: run.goodput_after_share, percent),
        ("queued sent", lambda run: run.replayed_count or None, count),
        ("  the last after", lambda run: run.replayed_last_s, seconds),
        ("memory peak, a node", lambda run: run.memory_peak_bytes, size),
        ("nodes died", lambda run: run.deaths_count, count),
        ("virtual time", lambda run: run.ended_s, seconds),
        ("run time", lambda run: run.run_s, seconds),
        ("events per second", lambda run: run.events_per_s, count),
    ]
    for label, value, text in rows:
        yield label, [_mean([value(run) for run in group], text) for group in groups]


def _by_population(
    scenario: Scenario,
) -> Iterator[Row]:
    names = [name for name, plan in scenario.populations.items() if plan.publish]
    for name in names if len(names) > 1 else ():
        yield f"  of {name}"[:20], lambda run, n=name: run.in_time_shares.get(n), percent  # type: ignore[misc]
        yield "    in number", lambda run, n=name: run.in_time_counts.get(n), count  # type: ignore[misc]


def _mean(values: list[Number], text: Callable[[float], str]) -> str:
    """Return the mean as text, or the number of known values if a run has none."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ABSENT if not known else f"{len(known)} of {len(values)}"
    return text(sum(known) / len(known))


def percent(share: float) -> str:
    """Return the percentage, rounded down, so that 100 % means all."""
    return f"{int(1000 * share) / 10:.1f} %"


def seconds(time_s: float) -> str:
    """The time in the unit that suits it; infinite: longer than the histogram's largest bound."""
    if time_s == inf:
        return BEYOND
    if time_s < 0.1:
        return f"{1000 * time_s:.1f} ms"
    return f"{time_s:.2f} s" if time_s < 10 else f"{time_s:,.1f} s"


def count(number: float) -> str:
    return f"{number:,.0f}"


def size(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


# --- charts ----------------------------------------------------------------------------------


def _charts(scenario: Scenario, runs: Sequence[Summary]) -> Iterator[Text]:
    last_s = max(run.ended_s for run in runs)
    most = max(1, *(sample.connected_count for run in runs for sample in run.samples))
    plans = scenario.populations.values()
    if any(plan.stay_s is None for plan in plans):
        yield _ruler("connected", last_s, f"top {most:,}")
        for run in runs:
            yield _strip(run.policy, run, last_s, lambda s: s.connected_count / most)
    if any(plan.publish or plan.stay_s is not None for plan in plans):
        yield from _goodput(runs, last_s)
    strips: list[tuple[str, Summary, slice]] = [(run.policy, run, slice(None)) for run in runs]
    if len(runs) == 1 and scenario.nodes <= NODES_MAX:
        strips = [(f"node {n}", runs[0], slice(n, n + 1)) for n in range(scenario.nodes)]
        titles = ("pressure", "window, log")
    else:
        titles = ("worst pressure", "least window, log")
    yield _ruler(titles[0], last_s, f"top {PRESSURE_TOP:g}")
    for label, run, nodes in strips:
        yield _strip(label, run, last_s, _level_of(max, _pressure, nodes))
    yield _ruler(titles[1], last_s, f"top {WINDOW_TOP:g}")
    for label, run, nodes in strips:
        yield _strip(label, run, last_s, _level_of(min, _window, nodes))


def _level_of(choose: Any, share: Callable[[NodeSample], float], nodes: slice) -> Level:
    """The share of the node among `nodes` that `choose` picks of those alive."""
    return lambda sample: choose(
        (share(n) for n in sample.nodes[nodes] if n.is_alive), default=None
    )


def _goodput(runs: Sequence[Summary], last_s: float) -> Iterator[Text]:
    """A strip of the goodput: what clients got per second, out of what they wanted."""
    rates = [_rates(run) for run in runs]
    most = max(1.0, *(rate for by_time in rates for rate in by_time.values()))
    yield _ruler("goodput", last_s, f"top {most:,.0f}/s")
    for run, by_time in zip(runs, rates, strict=True):
        shares = {t_s: rate / most for t_s, rate in by_time.items()}
        yield _strip(run.policy, run, last_s, partial(_share_at, shares))


def _share_at(shares: dict[float, float], sample: WorldSample) -> float:
    return shares.get(sample.t_s, 0.0)


def _rates(run: Summary) -> dict[float, float]:
    return {
        after.t_s: (after.done_count - before.done_count) / (after.t_s - before.t_s)
        for before, after in pairwise(run.samples)
        if after.t_s > before.t_s
    }


def _pressure(node: NodeSample) -> float:
    return node.pressure / PRESSURE_TOP


def _window(node: NodeSample) -> float:
    return log(max(1.0, node.window)) / log(WINDOW_TOP)


def _ruler(title: str, last_s: float, right: str) -> Text:
    step = STRIP // MARKS
    marks = "".join(f"{_instant(last_s * mark / MARKS):<{step}}" for mark in range(MARKS))
    return Text(f"{title:<{LABEL}}{marks} s  {right}", "bold", no_wrap=True)


def _instant(t_s: float) -> str:
    return f"{t_s:.0f}" if t_s >= 10 or not t_s else f"{t_s:.1f}"


def _strip(label: str, run: Summary, last_s: float, level: Level) -> Text:
    """A strip; a column shows the mean of its samples, and nothing after the end of the run."""
    columns: list[list[Number]] = [[] for _ in range(STRIP)]
    for sample in run.samples:
        columns[min(STRIP - 1, int(STRIP * sample.t_s / last_s))].append(level(sample))
    while not columns[-1]:
        columns.pop()
    text, shown = Text(f"{label:<{LABEL}}", no_wrap=True), " "
    for column in columns:
        shown = _block(column) if column else shown
        text.append(shown, "red" if shown == DOWN else "cyan")
    return text


def _block(column: Sequence[Number]) -> str:
    values = [value for value in column if value is not None]
    if not values:
        return DOWN
    share = min(1.0, max(0.0, sum(values) / len(values)))
    return BLOCKS[ceil(share * (len(BLOCKS) - 1) - 1e-9)]
