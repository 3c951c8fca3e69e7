"""Reports for the terminal and as sections of docs/benchmarks.md, one pair of markers for each."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks import report as page_report

from .checks import MARKS, Report

COLOURS = {MARKS[True]: "green", MARKS[False]: "red", MARKS[None]: "yellow"}
CHECK_HEADER = ("what", "reached", "bound", "")


def terminal(report: Report) -> RenderableType:
    """Title, tables, verdicts."""
    parts: list[RenderableType] = [
        Text(f"\n{report.title}", style="bold"),
        Text(report.scaled, style="dim"),
    ]
    for grid in report.grids:
        table = Table()
        for column in grid.header:
            table.add_column(column)
        for row in grid.rows:
            table.add_row(*(escape(cell) for cell in row))
        parts.append(table)
    if report.checks:
        table = Table(show_edge=False)
        for column in CHECK_HEADER:
            table.add_column(column)
        for check in report.checks:
            *cells, mark = check.cells
            table.add_row(*(escape(cell) for cell in cells), Text(mark, style=COLOURS[mark]))
        parts.append(table)
    parts += [Text(note, style="dim") for note in report.notes]
    return Group(*parts)


def section(report: Report, command: str, origin: str) -> str:
    """The section between its markers."""
    begin, end = markers(report.key)
    return "\n\n".join([begin, *paragraphs(report, command, origin), end])


def paragraphs(report: Report, command: str, origin: str) -> Iterator[str]:
    yield f"## {report.title}"
    yield f"`{command}`, {origin}"
    yield report.scaled
    if report.picture:
        yield f"![{report.title}]({report.picture})"
    for grid in report.grids:
        yield page_report.markdown_table(list(grid.header), [list(row) for row in grid.rows])
    if report.checks:
        rows = [check.cells for check in report.checks]
        yield page_report.markdown_table(list(CHECK_HEADER), rows)
    if report.notes:
        yield "\n".join(f"- {note}" for note in report.notes)


def markers(key: str) -> tuple[str, str]:
    return f"<!-- overload {key}: begin, written by make -->", f"<!-- overload {key}: end -->"


def write(page: Path, report: Report, command: str, origin: str) -> None:
    """Put the section in the place of the last one of its key; all else on the page stays."""
    page_report.write(page, section(report, command, origin), markers(report.key))
