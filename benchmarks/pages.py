"""What a part came to: in the terminal, raw in `.bench`, and as a page of `benchmarks/results`."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from . import machine
from .build import work_folder
from .checks import MARKS, Grid, Report, Reported

RESULTS = Path(__file__).resolve().parent / "results"
COLOURS = {MARKS[True]: "green", MARKS[False]: "red", MARKS[None]: "yellow"}
CHECK_HEADER = ("what", "reached", "bound", "")


def console() -> Console:
    """As wide as the tables where nobody looks."""
    return Console(width=None if sys.stdout.isatty() else 180)


def progress(screen: Console) -> Progress:
    what, count = TextColumn("{task.description}"), MofNCompleteColumn()
    columns = (what, BarColumn(24), count, TimeElapsedColumn())
    return Progress(*columns, console=screen, refresh_per_second=2)


def tell(result: Reported, where: str, screen: Console, folder: Path | None) -> bool:
    """Show a part, keep its figures, and write its page into `folder`; whether no bound was missed.

    `where`: what it was measured on.
    """
    report = result.report()
    screen.print(terminal(report))
    assert is_dataclass(result)
    assert not isinstance(result, type)
    raw = json.dumps(asdict(result), indent=1, default=str)
    (work_folder() / f"{report.key}.json").write_text(raw + "\n")
    if folder is not None:
        write(report, command(), f"{today()}. {where}. flowguard {commit()}.", folder)
        screen.print(f"written: {folder / report.key}.md")
    return report.passed


def command() -> str:
    """What was called, for whoever wants the same again."""
    program = sys.modules["__main__"].__spec__
    name = "benchmarks" if program is None else program.name.removesuffix(".__main__")
    return " ".join([f"python -m {name}", *sys.argv[1:]])


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def commit() -> str:
    return machine.commit() or "without git"


def terminal(report: Report) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"\n{report.title}", style="bold"),
        Text(report.scaled, style="dim"),
    ]
    for grid in report.grids:
        table = Table(*grid.header)
        for row in grid.rows:
            table.add_row(*(escape(cell) for cell in row))
        parts.append(table)
    if report.checks:
        table = Table(*CHECK_HEADER, show_edge=False)
        for check in report.checks:
            *cells, mark = check.cells
            table.add_row(*(escape(cell) for cell in cells), Text(mark, style=COLOURS[mark]))
        parts.append(table)
    parts += [Text(note, style="dim") for note in report.notes]
    return Group(*parts)


def write(report: Report, command: str, origin: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(paragraphs(report, command, origin))
    (folder / f"{report.key}.md").write_text(text + "\n")
    if report.picture is not None:
        (folder / f"{report.key}.svg").write_text(report.picture)


def paragraphs(report: Report, command: str, origin: str) -> Iterator[str]:
    yield f"# {report.title}"
    yield f"`{command}`, {origin}"
    yield report.scaled
    if report.picture is not None:
        yield f"![{report.title}]({report.key}.svg)"
    for grid in report.grids:
        yield markdown_table(grid)
    if report.checks:
        yield markdown_table(Grid(CHECK_HEADER, tuple(check.cells for check in report.checks)))
    if report.notes:
        yield "\n".join(f"- {note}" for note in report.notes)


def markdown_table(grid: Grid) -> str:
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (grid.header, ["---"] * len(grid.header), *grid.rows)
    )
