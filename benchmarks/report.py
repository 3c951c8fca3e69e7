"""The tables: the same cells for the terminal and for `benchmarks/results/brokers.md`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from rich.markup import escape
from rich.table import Table

from .checks import Grid
from .pages import markdown_table
from .peers import BROKERS
from .scenarios import Kind, Scenario
from .verdicts import BUILDS, Cell, Judged, Results, Verdict

SINK = "sink"
COLOURS = {Verdict.PASS: "green", Verdict.MISS: "red", Verdict.OPEN: "yellow"}
NOISY_CORES = 0.15
BROKER_IDLE, GENERATOR_BUSY, FULL_CORE = 0.9, 0.95, 0.9


@dataclass(frozen=True)
class Origin:
    command: str
    date: str
    machine: str
    pinned: bool
    seconds: float
    repeat: int
    versions: Mapping[str, str]  # of the brokers that ran
    missing: Mapping[str, str]  # broker -> why it could not run
    sync_ms: float  # `machine.sync_ms` of the disk that the brokers' files are on


def short(value: float) -> str:
    """Three digits at most: 1.55M, 122k, 87."""
    for bound, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * bound:
            scaled = value / bound
            return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f}{unit}"
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2f}"


def duration(ms: float) -> str:
    return f"{ms / 1000:.2g} s" if ms >= 1000 else f"{short(ms)} ms"


def figure(scenario: Scenario, cell: Cell, *, spread: bool = True) -> str:
    """Median and range of one broker in one row, or why there is none."""
    value = cell.median()
    if value is None:
        return "failed" if cell.failures else "-"  # the details say why
    low, high = min(cell.values()), max(cell.values())
    text = short(value)
    if spread and short(low) != short(high):
        text += f" ({short(low)}-{short(high)})"
    if scenario.kind is Kind.STORM:
        p99_ms = cell.median("connack_p99_ms")
        text += f"/s, p99 {duration(p99_ms or 0)}"
    if scenario.kind is Kind.IDLE:
        text += " KiB"
    if scenario.arguments.get("rate"):
        text = f"{short(cell.median('cpu_us') or 0)} µs"
        shares = [duration(cell.median(key) or 0) for key in ("p50_ms", "p99_ms", "p999_ms")]
        text += f" each; {', '.join(shares)}"
    elif scenario.arguments.get("durable"):  # A disk costs time that is nobody's CPU time.
        text += f", {short(cell.median('rate_per_s') or 0)}/s by the clock"
    shown = [note for note in cell.notes if not note.endswith(" connections")]
    return text + "".join(f"; {note}" for note in shown)


def goal_text(judged: Sequence[Judged]) -> str:
    """One mark for each build that was measured, in the order of the columns."""
    marks = {Verdict.PASS: "✓", Verdict.MISS: "✗", Verdict.OPEN: "?"}
    text = f"{' '.join(marks[one.verdict] for one in judged)} {judged[0].goal.text}"
    if judged[0].goal.row:  # A ratio that has no column.
        text += f": {' / '.join(ratio_text(one.reached) for one in judged)}"
    return text


def ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def ceiling(scenario: Scenario, results: Results) -> str:
    """The generator's rate against the sink, by the clock, and over the fastest broker's."""
    sink = results.cell(scenario, SINK).median("rate_per_s")
    if sink is None:
        return "-"
    rates = [results.cell(scenario, name).median("rate_per_s") for name in BROKERS if name != SINK]
    fastest = max((rate for rate in rates if rate), default=None)
    text = f"{short(sink)}/s" + (f" ({sink / fastest:.1f}x)" if fastest else "")
    relay_cores = results.cell(scenario, SINK).median("broker_cores") or 0
    return text + ("*" if relay_cores > FULL_CORE else "")


def main_grid(results: Results, origin: Origin) -> Grid:
    names = [name for name in BROKERS if name != SINK and name in origin.versions]
    peers = [name for name in names if name not in BUILDS]
    builds = [name for name in names if name in BUILDS]
    header = ["scenario", *names]
    header += [f"ratio to {peer}" for peer in peers] if builds else []
    header += ["goal"] if builds else []
    header += ["generator's limit (over the fastest)"] if SINK in origin.versions else []
    rows = []
    for scenario in results.scenarios:
        row = [scenario.title]
        row += [figure(scenario, results.cell(scenario, name)) for name in names]
        if builds:
            row += [
                " / ".join(ratio_text(results.ratio(scenario, peer, build)) for build in builds)
                for peer in peers
            ]
            row.append(
                ", ".join(
                    goal_text([results.judge(scenario, goal, build) for build in builds])
                    for goal in scenario.goals
                )
            )
        if SINK in origin.versions:
            row.append(ceiling(scenario, results))
        rows.append(tuple(row))
    return Grid(tuple(header), tuple(rows))


DETAIL = (
    ("by the clock /s", "rate_per_s", short),
    ("broker cores", "broker_cores", "{:.2f}".format),
    ("generator cores", "generator_cores", "{:.2f}".format),
    ("others' cores", "other_cores", "{:.2f}".format),
    ("p50 ms", "p50_ms", short),
    ("p99 ms", "p99_ms", short),
    ("p99.9 ms", "p999_ms", short),
    ("peak MiB", "peak_mib", short),
)


def detail_grid(results: Results, origin: Origin) -> Grid:
    """One row for each scenario and broker: what a reader needs to doubt a figure."""
    header = ("scenario", "broker", "n", *(title for title, _, _ in DETAIL), "remarks")
    rows = []
    for scenario in results.scenarios:
        for name in origin.versions:
            cell = results.cell(scenario, name)
            if not cell.samples:
                continue
            row = [scenario.key, name, str(len(cell.good))]
            for _, key, show in DETAIL:
                value = cell.median(key)
                row.append("" if value is None else show(value))
            remarks = list(cell.notes) if cell.good else [f"failed: {cell.failures[0]}"]
            if generator_bound(cell):
                remarks.append("held back by the generator")
            rows.append((*row, "; ".join(remarks)))
    return Grid(header, tuple(rows))


def generator_bound(cell: Cell) -> bool:
    broker, generator = cell.median("broker_cores"), cell.median("generator_cores")
    return bool(broker and generator and broker < BROKER_IDLE and generator > GENERATOR_BUSY)


def warnings(results: Results, origin: Origin) -> list[str]:
    """What a reader must know before believing the table."""
    texts = [f"{name} did not run: {reason}" for name, reason in origin.missing.items()]
    if not origin.pinned:
        texts.append(
            "This machine has one core: broker and generator shared it. Figures mean little."
        )
    others = [s.figures["other_cores"] for s in results.samples if "other_cores" in s.figures]
    if others and max(others) > NOISY_CORES:
        texts.append(
            f"Other programs used {mean(others):.2f} cores on average, {max(others):.2f} at worst, "
            "while this was measured. By the clock that costs much, per CPU second some."
        )
    return texts


def footnotes(origin: Origin) -> list[str]:
    lines = [
        f"`{origin.command}`, {origin.date}. {origin.machine}.",
        "Versions: " + ", ".join(f"{n} {v}" for n, v in origin.versions.items() if n != SINK) + ".",
        f"Median (range) of n = {origin.repeat}, brokers interleaved, a fresh process each; "
        f"1 s warm-up, {origin.seconds:g} s measured; MQTT 3.1.1 over loopback, 16-byte payload "
        "where the row says nothing else, 8-byte topics; "
        + ("one core for the broker, another for the generator." if origin.pinned else "unpinned."),
        "Messages: in and out per second of broker CPU time (user and system, all threads). "
        "Pipelined QoS 0: 100 messages of a pair on their way. Durable: clean session off on both "
        "sides, the broker's files on a disk that syncs 4 KiB in "
        f"{origin.sync_ms:.2f} ms. Fan-out: 10 messages on their way. "
        "Fan-in: one message on its way for each publisher. "
        "At random times (open loop, Poisson): CPU time of the broker for each message, in and "
        "out; p50, p99, p99.9 from the time when it was due until its subscriber had it. "
        "Storm: time from connect() to CONNACK. Idle: growth of resident memory over the "
        "connections, kernel memory not included.",
        "The generator's limit is its rate by the clock against a relay that does nothing else, "
        "and that over the fastest broker of the row. *: the relay's own core was full, too: no "
        "broker with the same system calls per message can do more, and the generator perhaps can.",
    ]
    return lines + [f"{n}: {BROKERS[n].remark}." for n in origin.versions if BROKERS[n].remark]


def rich_tables(results: Results, origin: Origin) -> list[Table]:
    """The main table and the details, for the terminal."""
    tables = []
    for title, grid in (
        ("In + out messages per second of broker CPU time", main_grid(results, origin)),
        ("Details (medians)", detail_grid(results, origin)),
    ):
        table = Table(title=title)
        for column in grid.header:
            is_text = column in ("scenario", "remarks")
            table.add_column(column, justify="left" if is_text else "right")
        for row in grid.rows:
            table.add_row(*(coloured(text) for text in row))
        tables.append(table)
    return tables


def coloured(text: str) -> str:
    mark = {"✓": "green", "✗": "red", "?": "yellow"}
    parts = [
        f"[{mark[part[0]]}]{escape(part)}[/]" if part and part[0] in mark else escape(part)
        for part in text.split(", ")
    ]
    return ", ".join(parts)


def markdown(results: Results, origin: Origin) -> str:
    parts = ["# Side by side", *footnotes(origin)[:2]]
    parts += [f"**{text}**" for text in warnings(results, origin)]
    parts.append(markdown_table(main_grid(results, origin)))
    parts.append("\n".join(f"- {line}" for line in footnotes(origin)[2:]))
    parts += ["## Details", markdown_table(detail_grid(results, origin))]
    return "\n\n".join(parts) + "\n"
