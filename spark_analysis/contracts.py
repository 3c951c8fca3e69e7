"""Contracts: the tables of a run as this room expects them, version 1 (docs/parquet-schema.md).

Written down a second time on purpose: analysis knows the files, not who wrote them. A test holds
both copies together.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import types as st

VERSION: Final = 1
VERSION_KEY: Final = b"flowguard.schema"
TABLE_KEY: Final = b"flowguard.table"


@dataclass(frozen=True, slots=True)
class Type:
    """A column's type: in files, and in Spark."""

    arrow: pa.DataType
    spark: st.DataType


STRING: Final = Type(pa.string(), st.StringType())
BOOL: Final = Type(pa.bool_(), st.BooleanType())
INT: Final = Type(pa.int32(), st.IntegerType())
LONG: Final = Type(pa.int64(), st.LongType())
REAL: Final = Type(pa.float64(), st.DoubleType())
TEXTS: Final = Type(
    pa.map_(pa.string(), pa.string()), st.MapType(st.StringType(), st.StringType(), True)
)


@dataclass(frozen=True, slots=True)
class ColumnContract:
    """One column; one that may be null may also be missing in an older file."""

    name: str
    type: Type
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableContract:
    """One table; rows that are equal in `key` are the same row."""

    name: str
    columns: tuple[ColumnContract, ...]
    key: tuple[str, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of its files, with their metadata."""
        metadata = {VERSION_KEY: str(VERSION).encode(), TABLE_KEY: self.name.encode()}
        fields = [pa.field(c.name, c.type.arrow, nullable=c.nullable) for c in self.columns]
        return pa.schema(fields, metadata=metadata)

    @property
    def spark(self) -> st.StructType:
        """The schema in Spark, which treats every column of a file as one that may be null."""
        return st.StructType([st.StructField(c.name, c.type.spark) for c in self.columns])


def _columns(**types: Type) -> tuple[ColumnContract, ...]:
    """Columns that are never null."""
    return tuple(ColumnContract(name, type_, nullable=False) for name, type_ in types.items())


def _maybe(**types: Type) -> tuple[ColumnContract, ...]:
    """Columns that may be null."""
    return tuple(ColumnContract(name, type_, nullable=True) for name, type_ in types.items())


RUN: Final = TableContract(
    "run",
    (
        *_columns(
            run_id=STRING,
            schema_version=INT,
            source=STRING,
            flowguard_version=STRING,
            scenario=STRING,
            policy=STRING,
        ),
        *_maybe(seed=LONG),
        *_columns(nodes_count=INT),
        *_maybe(
            clients_count=LONG,
            duration_s=REAL,
            started_unix_s=REAL,
            trigger_at_s=REAL,
            trigger_until_s=REAL,
            load_ratio=REAL,
            connect_deadline_s=REAL,
            acknowledge_deadline_s=REAL,
        ),
        *_columns(parameters=TEXTS, limits=TEXTS, command=STRING),
    ),
    ("run_id",),
)

SAMPLES: Final = TableContract(
    "samples",
    (
        *_columns(
            run_id=STRING,
            node=INT,
            t_s=REAL,
            is_alive=BOOL,
            pressure_ratio=REAL,
            pressure_queue_ratio=REAL,
            pressure_loop_ratio=REAL,
            pressure_store_ratio=REAL,
            pressure_replication_ratio=REAL,
            pressure_memory_ratio=REAL,
        ),
        *_maybe(cause=STRING),
        *_columns(
            window=REAL,
            connect_limit=LONG,
            rung=STRING,
            connects_in_process_count=INT,
            connects_buffered_count=INT,
            connects_buffered_bytes=LONG,
        ),
        *_maybe(backlog_count=INT),
        *_columns(connections_count=INT, packets_in_process_count=INT),
        *_maybe(packets_waiting_count=INT),
        *_columns(
            unfinished_bytes=LONG,
            memory_bytes=LONG,
            memory_limit_bytes=LONG,
            accepted_count=LONG,
            refused_count=LONG,
            discarded_count=LONG,
            closed_count=LONG,
            published_count=LONG,
            delivered_count=LONG,
            lost_count=LONG,
        ),
        *_maybe(dropped_count=LONG, busy_s=REAL, refusing_s=REAL),
        *_columns(sojourn_min_s=REAL, drift_s=REAL, commit_s=REAL),
    ),
    ("run_id", "t_s", "node"),
)

GOODPUT: Final = TableContract(
    "goodput",
    (
        *_columns(run_id=STRING, population=STRING, t_s=REAL),
        *_maybe(clients_count=LONG),
        *_columns(connected_count=LONG),
        *_maybe(first_connected_count=LONG),
        *_columns(attempts_count=LONG, declined_count=LONG),
        *_maybe(wasted_count=LONG, due_count=LONG),
        *_columns(acknowledged_count=LONG),
        *_maybe(in_time_count=LONG),
        *_columns(delivered_count=LONG),
    ),
    ("run_id", "t_s", "population"),
)

ATTEMPTS: Final = TableContract(
    "attempts",
    (
        *_columns(run_id=STRING, population=STRING, client=LONG),
        *_maybe(number=INT),
        *_columns(node=INT, started_s=REAL, ended_s=REAL, outcome=STRING),
    ),
    ("run_id", "ended_s", "population", "client", "number"),
)

LATENCIES: Final = TableContract(
    "latencies",
    (*_columns(run_id=STRING, population=STRING, kind=STRING, t_s=REAL, bound_s=REAL, count=LONG),),
    ("run_id", "t_s", "population", "kind", "bound_s"),
)

DECISIONS: Final = TableContract(
    "decisions",
    (
        *_columns(
            run_id=STRING,
            node=INT,
            t_s=REAL,
            kind=STRING,
            before=REAL,
            after=REAL,
            pressure_ratio=REAL,
        ),
        *_maybe(cause=STRING),
        *_columns(why=STRING),
    ),
    ("run_id", "t_s", "node", "kind"),
)

CLIENTS: Final = TableContract(
    "clients",
    (
        *_columns(run_id=STRING, population=STRING, client=LONG, attempts_count=INT),
        *_maybe(first_connected_s=REAL),
        *_columns(acknowledged_count=LONG, in_time_count=LONG, cost_units=REAL),
    ),
    ("run_id", "population", "client"),
)

VIOLATIONS: Final = TableContract(
    "violations",
    (
        *_columns(run_id=STRING),
        *_maybe(node=INT),
        *_columns(t_s=REAL, invariant=STRING, detail=STRING),
    ),
    ("run_id", "t_s", "node", "invariant"),
)

END: Final = TableContract(
    "end",
    (
        *_columns(run_id=STRING, ended_s=REAL, ended_by=STRING),
        *_maybe(events_count=LONG),
        *_columns(deaths_count=INT),
    ),
    ("run_id",),
)

TABLES: Final = {
    table.name: table
    for table in (RUN, SAMPLES, GOODPUT, ATTEMPTS, LATENCIES, DECISIONS, CLIENTS, VIOLATIONS, END)
}
