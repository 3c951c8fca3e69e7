"""Traces: arrivals or messages over time, from a table of one's own or from a recorded run.

The table is a CSV or Parquet file with the columns `t_s` and `clients` or `messages`: the number
that arrived from that instant to the next one. A recorded run, of a simulation or of a broker, is
given by its directory, or by its file of `goodput` or `samples`. Each recorded attempt becomes a
client that connects, so use a run without rejections: a client that was rejected and tried again
counts as two.
"""

import csv
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal, final

from flowguard.errors import ConfigError
from simulations.scenario import TracePlan

What = Literal["clients", "messages"]
Points = list[tuple[float, float]]

_RECORDED: Final[Mapping[What, tuple[str, ...]]] = {
    "clients": ("attempts_count", "accepted_count"),
    "messages": ("due_count", "published_count", "acknowledged_count"),
}
"""Columns of a recorded run, the best first."""


def read_trace(path: Path, what: What) -> Points:
    """Return the trace as `(t_s, count)` in the order of time. Raises ConfigError."""
    try:
        if path.is_dir():
            rows = [row for part in _parts(path) for row in _parquet(part)]
        else:
            rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        raise ConfigError(f"{path}: is empty")
    if what in rows[0]:
        points = [(_number(path, row, "t_s"), _number(path, row, what)) for row in rows]
    else:
        points = _recorded(path, what, rows)
    _require_order(path, points)
    return points


def _parts(folder: Path) -> list[Path]:
    for table in ("goodput", "samples"):
        parts = sorted(folder.glob(f"{table}-*.parquet"))
        if parts:
            return parts
    raise ConfigError(f"{folder} is no recorded run: it has neither goodput nor samples")


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid CSV") from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(
            path, page_checksum_verification=True
        ).to_pylist()
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}: is not valid Parquet") from error
    except OSError as error:
        words = error.strerror or str(error).splitlines()[0]
        raise ConfigError(f"{path}: cannot be read: {words}") from error
    return rows


def _recorded(path: Path, what: What, rows: list[dict[str, Any]]) -> Points:
    """Add up all nodes or populations. A recorded count ends at its instant; the result begins at
    it."""
    known = [name for name in _RECORDED[what] if rows[0].get(name) is not None]
    if not known:
        raise ConfigError(f"{path}: has no column {what}")
    sums: dict[float, float] = {}
    for row in rows:
        t_s = _number(path, row, "t_s")
        sums[t_s] = sums.get(t_s, 0.0) + _number(path, row, known[0])
    times_s = sorted(sums)
    step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
    begins_s = [max(0.0, times_s[0] - step_s), *times_s[:-1]]
    # A count at time 0 has no interval in which to arrive.
    return [
        (begin_s, sums[end_s])
        for begin_s, end_s in zip(begins_s, times_s, strict=True)
        if begin_s < end_s
    ]


def _number(path: Path, row: Mapping[str, Any], column: str) -> float:
    try:
        return float(row[column])
    except KeyError:
        raise ConfigError(f"{path}: has no column {column}") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: {column}: {row[column]!r} is no number") from None


def _require_order(path: Path, points: Iterable[tuple[float, float]]) -> None:
    for (before_s, _), (t_s, _) in pairwise(points):
        if t_s <= before_s:
            raise ConfigError(f"{path}: t_s: {t_s:g} is not after {before_s:g}")


@final
class Curve:
    """Number of arrivals by each instant of a trace, as evenly as possible between its points."""

    __slots__ = ("_sums", "_times_s", "total")

    def __init__(self, plan: TracePlan) -> None:
        times_s = [t_s for t_s, _ in plan.points]
        step_s = times_s[-1] - times_s[-2] if len(times_s) > 1 else 1.0
        self._times_s = [t_s / plan.squeeze for t_s in (*times_s, times_s[-1] + step_s)]
        self._sums = list(accumulate((plan.scale * n for _, n in plan.points), initial=0.0))
        self.total = self._sums[-1]

    def by(self, t_s: float) -> float:
        """Return the number of arrivals until `t_s`."""
        times_s, sums = self._times_s, self._sums
        if t_s <= times_s[0]:
            return 0.0
        if t_s >= times_s[-1]:
            return self.total
        i = bisect_right(times_s, t_s) - 1
        share = (t_s - times_s[i]) / (times_s[i + 1] - times_s[i])
        return sums[i] + share * (sums[i + 1] - sums[i])

    def when(self, number: float) -> float | None:
        """Return the instant of the arrival with this number, or None if it never happens."""
        times_s, sums = self._times_s, self._sums
        if number > self.total:
            return None
        i = max(1, bisect_left(sums, number))
        share = (number - sums[i - 1]) / ((sums[i] - sums[i - 1]) or 1.0)
        return times_s[i - 1] + share * (times_s[i] - times_s[i - 1])
