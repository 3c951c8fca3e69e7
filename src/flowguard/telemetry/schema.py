"""The tables of a run, version 1: names, types, units, meaning.

docs/reference/parquet-schema.md is made from this file (`python -m flowguard.telemetry.schema`). A
reader refuses a table of another version; a new optional column is no new version.
"""

import sys
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

VERSION: Final = 1
VERSION_KEY: Final = b"flowguard.schema"
TABLE_KEY: Final = b"flowguard.table"

STRING: Final = pa.string()
BOOL: Final = pa.bool_()
INT: Final = pa.int32()
LONG: Final = pa.int64()
REAL: Final = pa.float64()
TEXTS: Final = pa.map_(STRING, STRING)


@dataclass(frozen=True, slots=True)
class Column:
    """One column; every name ends with its unit, a `_count` is of things, a bare name is a word."""

    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False
    """Null: not known, or it has not happened."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table; `columns` in the order in which rows give their values."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns that tell rows apart; where a time comes next to the run, rows are in its
    order."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with version and name of the table in the file's own metadata."""
        fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns]
        return pa.schema(
            fields, metadata={VERSION_KEY: str(VERSION).encode(), TABLE_KEY: self.name.encode()}
        )


_RUN_ID: Final = Column("run_id", STRING, "which run")
_NODE: Final = Column("node", INT, "which node, from 0")
_T: Final = Column("t_s", REAL, "time since the start of the run")
_POPULATION: Final = Column("population", STRING, "which clients; of a broker: `all`")

RUN: Final = Table(
    "run",
    "The run itself: one row, written first.",
    (
        _RUN_ID,
        Column("schema_version", INT, f"of all tables of the run: {VERSION}"),
        Column("source", STRING, "`simulation` or `broker`"),
        Column("flowguard_version", STRING, "version that wrote it"),
        Column("scenario", STRING, "its name; of a broker: `live`"),
        Column("policy", STRING, "overload policy in force"),
        Column("seed", LONG, "of all chance", nullable=True),
        Column("nodes_count", INT, "broker nodes"),
        Column("clients_count", LONG, "clients of all populations", nullable=True),
        Column("duration_s", REAL, "how long it was to last at most", nullable=True),
        Column("started_unix_s", REAL, "when it began; null: virtual time", nullable=True),
        Column("trigger_at_s", REAL, "when the disturbance began", nullable=True),
        Column("trigger_until_s", REAL, "when the disturbance ended, null if never", nullable=True),
        Column(
            "load_ratio", REAL, "wanted work divided by the capacity of all nodes", nullable=True
        ),
        Column("connect_deadline_s", REAL, "how long clients wait for CONNACK", nullable=True),
        Column("acknowledge_deadline_s", REAL, "until when PUBACK is of use", nullable=True),
        Column(
            "parameters",
            TEXTS,
            "what differs from the scenario's file, by dotted key; "
            "`file_digest`: of a scenario or a trace that is none of flowguard's",
        ),
        Column("limits", TEXTS, "every setting of section `flow`, by key"),
        Column("command", STRING, "runs the same again; of a broker: empty"),
    ),
    ("run_id",),
)

SAMPLES: Final = Table(
    "samples",
    "Every node, ten times a second. Counts of events are since the sample before.",
    (
        _RUN_ID,
        _NODE,
        _T,
        Column("is_alive", BOOL, "whether a process runs; if not, all numbers are 0"),
        Column(
            "pressure_ratio",
            REAL,
            "the worst signal divided by its objective, at most 16; overload above 1",
        ),
        Column("pressure_queue_ratio", REAL, "packets waiting for their turn"),
        Column("pressure_loop_ratio", REAL, "drift of the event loop"),
        Column("pressure_store_ratio", REAL, "durable writes"),
        Column("pressure_replication_ratio", REAL, "replicas that do not answer"),
        Column("pressure_memory_ratio", REAL, "memory"),
        Column("cause", STRING, "which signal is worst", nullable=True),
        Column("window", REAL, "packets that every client may have in process"),
        Column("connect_limit", LONG, "CONNECTs that may be in process"),
        Column("rung", STRING, "`buffer` or `close`: what happens to new connections"),
        Column("connects_in_process_count", INT, "CONNECTs admitted and not answered"),
        Column("connects_buffered_count", INT, "CONNECTs waiting"),
        Column("connects_buffered_bytes", LONG, "their sizes"),
        Column("backlog_count", INT, "sockets the kernel keeps", nullable=True),
        Column("connections_count", INT, "sockets accepted and not ended"),
        Column("packets_in_process_count", INT, "admitted and not done, cost units"),
        Column("packets_waiting_count", INT, "arrived and not admitted", nullable=True),
        Column("unfinished_bytes", LONG, "payloads admitted and not done"),
        Column("memory_bytes", LONG, "of the process"),
        Column("memory_limit_bytes", LONG, "beyond it the process dies"),
        Column("accepted_count", LONG, "CONNECTs answered with success"),
        Column("refused_count", LONG, "CONNECTs answered with 137"),
        Column("discarded_count", LONG, "CONNECTs not worth an answer"),
        Column("closed_count", LONG, "sockets closed before their CONNECT was read"),
        Column(
            "published_count",
            LONG,
            "PUBLISHes acknowledged; of a broker: taken on, those of QoS 0, too",
        ),
        Column("delivered_count", LONG, "messages sent to subscribers"),
        Column("lost_count", LONG, "acknowledged messages that cannot be delivered any more"),
        Column("dropped_count", LONG, "deliveries dropped at full queues", nullable=True),
        Column(
            "busy_s",
            REAL,
            "time the event loop worked; of a broker: CPU time of its thread",
            nullable=True,
        ),
        Column("refusing_s", REAL, "of it for accepting and refusing", nullable=True),
        Column(
            "sojourn_min_s",
            REAL,
            "the shortest time of a packet from socket to done since the last sample",
        ),
        Column(
            "drift_s",
            REAL,
            "90th percentile of the loop's drift over a second, or of waiting for it",
        ),
        Column("commit_s", REAL, "90th percentile of durable writes over a second"),
    ),
    ("run_id", "t_s", "node"),
)

GOODPUT: Final = Table(
    "goodput",
    "Every population, ten times a second. Counts of events are since the row before.",
    (
        _RUN_ID,
        _POPULATION,
        _T,
        Column("clients_count", LONG, "that exist by now", nullable=True),
        Column("connected_count", LONG, "connected now"),
        Column("first_connected_count", LONG, "connected at least once by now", nullable=True),
        Column("attempts_count", LONG, "attempts that began"),
        Column("declined_count", LONG, "attempts that failed"),
        Column("wasted_count", LONG, "CONNECTs served after their client gave up", nullable=True),
        Column("due_count", LONG, "PUBLISHes that clients wanted to send", nullable=True),
        Column("acknowledged_count", LONG, "PUBLISHes acknowledged; of a broker: as in samples"),
        Column("in_time_count", LONG, "of them within their deadline", nullable=True),
        Column("delivered_count", LONG, "messages at subscribers; of a broker: sent to them"),
    ),
    ("run_id", "t_s", "population"),
)

ATTEMPTS: Final = Table(
    "attempts",
    "Every attempt to connect, when its client knows how it ended; of a broker: as it saw it, from "
    "the socket in its backlog to CONNACK or the end of the connection.",
    (
        _RUN_ID,
        _POPULATION,
        Column("client", LONG, "its number in the population; of a broker: a running number"),
        Column("number", INT, "how many it has made before", nullable=True),
        _NODE,
        Column("started_s", REAL, "time since the start of the run"),
        Column("ended_s", REAL, "time since the start of the run"),
        Column("outcome", STRING, "`connected`, `refused`, `closed`, `timed_out`, `unreachable`"),
    ),
    ("run_id", "ended_s", "population", "client", "number"),
)

LATENCIES: Final = Table(
    "latencies",
    "Histograms per second; buckets without an observation are left out. Of a broker: `connect` is "
    "an attempt that was connected, `acknowledgement` a PUBLISH of QoS 1 or 2 from its decoding to "
    "PUBACK or PUBREC (what it waits before, in a socket, only its client knows); it knows no "
    "`delivery`.",
    (
        _RUN_ID,
        _POPULATION,
        Column("kind", STRING, "`connect`, `acknowledgement`, `delivery`"),
        Column("t_s", REAL, "end of the second"),
        Column("bound_s", REAL, "upper bound of the bucket; infinite: more than all bounds"),
        Column("count", LONG, "observations in this bucket"),
    ),
    ("run_id", "t_s", "population", "kind", "bound_s"),
)

DECISIONS: Final = Table(
    "decisions",
    "Decisions of a node, with their reason.",
    (
        _RUN_ID,
        _NODE,
        _T,
        Column("kind", STRING, "`window`, `connect_limit`, `rung`"),
        Column("before", REAL, "value before; a rung: 0 buffer, 1 close"),
        Column("after", REAL, "value after"),
        Column("pressure_ratio", REAL, "of the node"),
        Column("cause", STRING, "the worst signal", nullable=True),
        Column("why", STRING, "for a person"),
    ),
    ("run_id", "t_s", "node", "kind"),
)

CLIENTS: Final = Table(
    "clients",
    "Every client, at the end of the run; a broker writes none.",
    (
        _RUN_ID,
        _POPULATION,
        Column("client", LONG, "its number in the population"),
        Column("attempts_count", INT, "attempts to connect"),
        Column("first_connected_s", REAL, "null: never", nullable=True),
        Column("acknowledged_count", LONG, "PUBLISHes acknowledged"),
        Column("in_time_count", LONG, "of them within their deadline"),
        Column("cost_units", REAL, "what they cost the broker"),
    ),
    ("run_id", "population", "client"),
)

VIOLATIONS: Final = Table(
    "violations",
    "Invariants that did not hold; a run ends with the first. A broker writes none.",
    (
        _RUN_ID,
        Column("node", INT, "which node; null: the whole world", nullable=True),
        _T,
        Column("invariant", STRING, "its number and name in docs/explain/overload.md"),
        Column("detail", STRING, "what was seen"),
    ),
    ("run_id", "t_s", "node", "invariant"),
)

END: Final = Table(
    "end",
    "That the run is complete; one row, written last.",
    (
        _RUN_ID,
        Column("ended_s", REAL, "time since the start of the run"),
        Column("ended_by", STRING, "`duration`, `connected`, `violation` or `stopped`"),
        Column("events_count", LONG, "events of the simulation", nullable=True),
        Column("deaths_count", INT, "processes that died of memory"),
    ),
    ("run_id",),
)

TABLES: Final = {
    table.name: table
    for table in (RUN, SAMPLES, GOODPUT, ATTEMPTS, LATENCIES, DECISIONS, CLIENTS, VIOLATIONS, END)
}

_PREFACE: Final = f"""\
# The tables of a run

Version {VERSION}. Made from `src/flowguard/telemetry/schema.py`; do not edit.

A run is a directory of Parquet files, `TABLE-NUMBER.parquet` (`samples-00000.parquet`, ...), the
same from a simulation and from a broker that records. A file that is not complete is called
`.TABLE-NUMBER.parquet.part`. Several runs are several directories in one. A run without a row in
`end` was not finished. A broker may record several runs: its counters continue from run to run,
and times and file numbers begin again.

Every file has its table and version in its own metadata (`flowguard.table`, `flowguard.schema`).
Every page has a checksum, which most readers compare only on request (pyarrow:
`page_checksum_verification=True`; Spark: `parquet.page.verify-checksum.enabled`). A file without
checksums is valid, too; damage in it may be read as other numbers.
Names end with their units; `_ratio` is a quotient without one. Times of a simulation are virtual,
and the same seed gives the same content.
"""


def page() -> str:
    """The text of docs/reference/parquet-schema.md."""
    lines = [_PREFACE]
    for table in TABLES.values():
        lines += [f"## {table.name}", "", table.meaning, ""]
        lines += ["| column | type | null | meaning |", "|---|---|---|---|"]
        for column in table.columns:
            null = "yes" if column.nullable else ""
            lines.append(f"| `{column.name}` | {column.type} | {null} | {column.meaning} |")
        lines += ["", f"The key is {', '.join(f'`{name}`' for name in table.key)}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
