"""The screen of `flowguard analyze --follow`: the last minutes, the newest one last."""

from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table

from spark_analysis.report.words import number

SHOWN: Final = 15
"""Minutes on the screen; the file has all of them."""


def following_screen(rows: Sequence[dict[str, Any]]) -> Table:
    """A table of the newest of `rows`, which are those of `following.minutes`."""
    runs = sorted({row["run_id"] for row in rows})
    title = f"{', '.join(runs[:3])}: {len(rows)} minutes" if runs else "waiting for samples"
    table = Table(
        box=None, header_style="dim", title=title, title_justify="left", padding=(0, 1, 0, 0)
    )
    if len(runs) > 1:
        table.add_column("run")
    for name in ("minute", "let in", "refused", "published", "delivered", "lost"):
        table.add_column(name, justify="right")
    for name in ("clients", "pressure", "window", "memory"):
        table.add_column(name, justify="right")
    for row in rows[-SHOWN:]:
        table.add_row(*([row["run_id"]] if len(runs) > 1 else []), *_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    counts = ("accepted", "refused", "published", "delivered", "lost")
    window, memory = row["window_min"], row["memory_max_ratio"]
    return (
        str(row["minute"]),
        *(number(row[f"{name}_count"]) for name in counts),
        number(row["connections_max_count"]),
        f"{row['pressure_max_ratio']:.2f}",
        "" if window is None else f"{window:.3g}",
        "" if memory is None else f"{100 * memory:.0f} %",
    )
