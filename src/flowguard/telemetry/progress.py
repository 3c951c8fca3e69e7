"""Progress: the state of a broker's recording, for display; knows no Parquet."""

from dataclasses import dataclass, field
from typing import Final

OF_A_BROKER: Final = (
    *("samples", "goodput", "attempts", "latencies", "decisions", "reasons"),
    "connections",
)
"""Tables with rows that can be dropped."""
BY_ROWS: Final = "rows"
BY_BYTES: Final = "bytes"
BOUNDS: Final = (BY_ROWS, BY_BYTES)
"""The limits of rows that wait for the disk."""
Drops = dict[str, dict[str, int]]
"""Number of rows by table, then by the limit that was reached."""


@dataclass(slots=True)
class RecordingProgress:
    """The progress of a recording, written by the recorder, read by status and metrics."""

    directory: str
    """The directory of all runs, or the topic."""
    limit_bytes: int
    """Maximum size of all runs on the disk, bytes."""
    run_id: str = ""
    """The current run, or the last one."""
    error: str | None = None
    """The error that has ended recording, or None."""
    written_rows: int = 0
    """Number of rows passed to files, over all runs of this process."""
    dropped_rows: Drops = field(default_factory=dict)
    """Number of rows dropped because the disk was too slow."""
    used_bytes: int = 0
    """Last measured size of all runs, bytes, to compare with `limit_bytes`."""
