"""Runs of any size, drawn and not simulated: only their number of rows matters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_analysis.runs.contracts import (
    CLIENTS,
    END,
    GOODPUT,
    LATENCIES,
    RUN,
    SAMPLES,
    VERSION,
    TableContract,
)

NODES: Final = 3
STEPS_PER_S: Final = 10
CLIENTS_COUNT: Final = 1_000
POLICIES: Final = ("adaptive", "none", "static")
_BATCH_STEPS: Final = 20_000
_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, float("inf"))

Columns = dict[str, Any]


def write_runs(directory: Path, rows: int, runs: int) -> int:
    """Write `runs` runs with about `rows` samples together; returns how many there are."""
    steps = max(rows // (runs * NODES), 100)
    for number in range(runs):
        _write_run(directory / f"run-{number:05}", number, steps)
    return runs * steps * NODES


def _write_run(directory: Path, number: int, steps: int) -> None:
    directory.mkdir(parents=True)
    chance = np.random.default_rng(number)
    duration_s = steps / STEPS_PER_S
    run_id = f"run-{number:05}"
    described = {
        "run_id": run_id,
        "schema_version": VERSION,
        "source": "simulation",
        "scenario": "drawn",
        "policy": POLICIES[number % len(POLICIES)],
        "seed": number // len(POLICIES),
        "nodes_count": NODES,
        "trigger_at_s": duration_s / 3,
        "trigger_until_s": duration_s / 2,
        "load_ratio": 0.9,
    }
    _one_row(directory, RUN, described)
    _in_batches(directory, SAMPLES, run_id, steps, lambda t_s: _samples(t_s, chance))
    _in_batches(directory, GOODPUT, run_id, steps, lambda t_s: _goodput(t_s, chance))
    _in_batches(directory, LATENCIES, run_id, steps // STEPS_PER_S, _latencies)
    _in_batches(directory, CLIENTS, run_id, CLIENTS_COUNT, lambda _: _clients(chance))
    ended = {"run_id": run_id, "ended_s": duration_s, "ended_by": "duration"}
    _one_row(directory, END, ended)


def _samples(t_s: np.ndarray[Any, Any], chance: np.random.Generator) -> Columns:
    count = len(t_s) * NODES
    return {
        "node": np.tile(np.arange(NODES), len(t_s)),
        "t_s": np.repeat(t_s, NODES),
        "is_alive": np.ones(count, bool),
        "window": np.exp(chance.normal(3, 0.3, count)),
        "pressure_ratio": chance.uniform(0.5, 1.5, count),
        "memory_bytes": chance.integers(10**8, 2 * 10**8, count),
        "memory_limit_bytes": np.full(count, 2**28),
        "accepted_count": chance.integers(0, 50, count),
        "refused_count": chance.integers(0, 5, count),
        "published_count": chance.integers(0, 500, count),
        "busy_s": chance.uniform(0, 0.1, count),
        "refusing_s": chance.uniform(0, 0.01, count),
    }


def _goodput(t_s: np.ndarray[Any, Any], chance: np.random.Generator) -> Columns:
    due = chance.integers(900, 1100, len(t_s))
    return {
        "t_s": t_s,
        "clients_count": np.full(len(t_s), CLIENTS_COUNT),
        "first_connected_count": np.minimum(t_s * 50, CLIENTS_COUNT).astype(int),
        "attempts_count": chance.integers(0, 9, len(t_s)),
        "due_count": due,
        "acknowledged_count": due,
        "in_time_count": due - chance.integers(0, 50, len(t_s)),
    }


def _latencies(t_s: np.ndarray[Any, Any]) -> Columns:
    count = len(t_s) * len(_BOUNDS_S)
    return {
        "kind": np.full(count, "acknowledgement"),
        "t_s": np.repeat(np.floor(t_s * STEPS_PER_S), len(_BOUNDS_S)),
        "bound_s": np.tile(_BOUNDS_S, len(t_s)),
        "count": np.tile(np.arange(1, len(_BOUNDS_S) + 1), len(t_s)),
    }


def _clients(chance: np.random.Generator) -> Columns:
    return {
        "client": np.arange(CLIENTS_COUNT),
        "in_time_count": chance.integers(0, 99, CLIENTS_COUNT),
        "cost_units": chance.uniform(50, 99, CLIENTS_COUNT),
    }


def _in_batches(
    directory: Path,
    table: TableContract,
    run_id: str,
    steps: int,
    columns: Callable[[np.ndarray[Any, Any]], Columns],
) -> None:
    with pq.ParquetWriter(
        directory / f"{table.name}-00000.parquet",
        table.arrow,
        compression="zstd",
        write_page_checksum=True,
    ) as writer:
        for first in range(0, steps, _BATCH_STEPS):
            t_s = np.arange(first + 1, min(first + _BATCH_STEPS, steps) + 1) / STEPS_PER_S
            writer.write_table(_full(table, run_id, columns(t_s)))


def _full(table: TableContract, run_id: str, columns: Columns) -> pa.Table:
    """Columns that are not given are zero, `all` or null."""
    count = len(next(iter(columns.values())))
    words = {"run_id": run_id, "population": "all", "rung": "buffer"}
    arrays = []
    for field in table.arrow:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name], field.type))
        elif field.nullable:
            arrays.append(pa.nulls(count, field.type))
        elif field.type == pa.string():
            arrays.append(pa.array([words.get(field.name, "")] * count))
        else:
            arrays.append(pa.array(np.zeros(count), pa.float64()).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=table.arrow)


def _one_row(directory: Path, table: TableContract, row: Columns) -> None:
    zeros = {pa.string(): "", pa.int32(): 0, pa.int64(): 0, pa.float64(): 0.0}
    full = {
        field.name: row.get(field.name, None if field.nullable else zeros.get(field.type, {}))
        for field in table.arrow
    }
    pq.write_table(
        pa.Table.from_pylist([full], schema=table.arrow), directory / f"{table.name}-00000.parquet"
    )
