"""Progress: what a broker's recording has done so far, for display; knows no Parquet."""

from dataclasses import dataclass, field
from typing import Final

OF_A_BROKER: Final = ("samples", "goodput", "attempts", "latencies", "decisions")
"""Tables with rows that can be dropped."""
BY_ROWS: Final = "rows"
BY_BYTES: Final = "bytes"
BOUNDS: Final = (BY_ROWS, BY_BYTES)
"""The bounds on rows that wait for the disk."""
Drops = dict[str, dict[str, int]]
"""Rows by table, then by the bound that was reached."""


@dataclass(slots=True)
class RecordingProgress:
    """The progress of a recording, written by the recorder, read by status and metrics."""

    directory: str
    """The directory of all runs, or the topic."""
    limit_bytes: int
    """The bound on the size of all runs on the disk."""
    run_id: str = ""
    """The run that is recorded, or was last."""
    error: str | None = None
    """The error that has ended recording; None: it goes on."""
    written_rows: int = 0
    """Rows handed to files, of all runs of this process."""
    dropped_rows: Drops = field(default_factory=dict)
    """Rows dropped because the disk was too slow."""
    used_bytes: int = 0
    """The size of all runs when it was last looked at, to compare with `limit_bytes`."""
