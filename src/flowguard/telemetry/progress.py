"""Progress: what a broker's recording has done so far, for whoever shows it; knows no Parquet."""

from dataclasses import dataclass, field
from typing import Final

OF_A_BROKER: Final = ("samples", "goodput", "attempts", "latencies", "decisions")
"""Tables with rows that can be dropped."""
BY_ROWS: Final = "rows"
BY_BYTES: Final = "bytes"
BOUNDS: Final = (BY_ROWS, BY_BYTES)
"""Of what waits for the disk."""
Drops = dict[str, dict[str, int]]
"""Rows by table, then by the bound that was reached."""


@dataclass(slots=True)
class Progress:
    """Written by the recorder, read by status and metrics."""

    directory: str
    """Of all runs."""
    limit_bytes: int
    """Of all runs, on the disk."""
    run_id: str = ""
    """Which run is recorded, or was last."""
    error: str | None = None
    """Why nothing is recorded any more; None: it is."""
    written_rows: int = 0
    """Handed to files, of all runs of this process."""
    dropped_rows: Drops = field(default_factory=dict)
    """Where the disk was too slow."""
    used_bytes: int = 0
    """Of `limit_bytes`, when it was last looked at."""
