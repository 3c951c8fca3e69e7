"""Tables: the result as Parquet and CSV, one file per table; the same runs give the same bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from spark_analysis.analysis import Analysis
from spark_analysis.runs.contracts import TABLES
from spark_analysis.runs.examination import LeftOut

_RUN: Final = (
    *("run_id", "source", "scenario", "policy", "seed", "nodes_count", "clients_count"),
    *("load_ratio", "trigger_at_s", "trigger_until_s", "ended_s", "ended_by", "deaths_count"),
)
_LEFT_OUT: Final = pa.schema(
    [("path", pa.string()), ("run_id", pa.string()), ("reason", pa.string())]
)


FOLDER: Final = "tables"
"""The directory of results, in that of the report."""


def write_tables(tables: Mapping[str, pa.Table], directory: Path) -> None:
    """Write `NAME.parquet` and `NAME.csv` for every table."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, directory / f"{name}.parquet", compression="zstd")
        pa.csv.write_csv(table, directory / f"{name}.csv")


def result_tables(analysis: Analysis) -> dict[str, pa.Table]:
    day = analysis.day
    return {
        "runs": runs_table(analysis),
        "left_out": left_out_table(analysis.left_out),
        "summary": analysis.summary,
        "outliers": analysis.outliers,
        "violations": analysis.violations,
        "region": analysis.region,
        "course_of_work": analysis.work,
        "course_of_windows": analysis.windows,
        **({} if day is None else {"day": day.course, "day_reasons": day.reasons}),
        **analysis.answers,
    }


def runs_table(analysis: Analysis) -> pa.Table:
    types = {c.name: c.type for name in ("run", "end") for c in TABLES[name].columns}
    words = [("parameters", pa.string()), ("command", pa.string())]
    described = {run.run_id: {**run.run, **run.end} for run in analysis.runs}
    rows = [{**described[known["run_id"]], **known} for known in analysis.sets.to_pylist()]
    schema = pa.schema([*((name, types[name]) for name in _RUN), *words])
    return pa.Table.from_pylist(rows, schema=schema)


def left_out_table(left_out: Sequence[LeftOut]) -> pa.Table:
    rows = [{"path": one.path, "run_id": one.run_id, "reason": one.reason} for one in left_out]
    return pa.Table.from_pylist(rows, schema=_LEFT_OUT)
