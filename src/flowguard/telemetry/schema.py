"""The tables of a run, version 1: names, types, units, meaning.

docs/reference/parquet-schema.md is made from this file (`python -m tests.reference`). A reader
refuses a table of another version; a new optional column is no new version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

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
Pairs = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Each name ends with its unit; `_count` counts things; a bare name is a text."""

    name: str
    type: pa.DataType
    meaning: str
    nullable: bool = False
    """Null means unknown, or that the event has not happened."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table. A row is a tuple of type `row`: its fields are the columns without `run_id`."""

    name: str
    row: type[tuple[Any, ...]]
    """The type of rows; its docstring is the meaning of the table."""
    key: tuple[str, ...]
    """The columns that identify a row; rows are in the order of the time in it, if any."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in the order of files; `run_id` is always the first."""
        return _columns(self.row)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with version and table name in the file's metadata."""
        fields = [pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns]
        return pa.schema(
            fields, metadata={VERSION_KEY: str(VERSION).encode(), TABLE_KEY: self.name.encode()}
        )

    def batch(self, run_id: str, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Return rows of a run, given column by column without `run_id`."""
        all_columns = zip(([run_id] * len(columns[0]), *columns), self.columns, strict=True)
        arrays = [pa.array(values, column.type) for values, column in all_columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@cache
def _columns(row: type[tuple[Any, ...]]) -> tuple[Column, ...]:
    hints = get_type_hints(row, include_extras=True)
    return Column("run_id", STRING, "which run"), *(
        Column(name, type, meaning, NoneType in get_args(hint.__origin__))
        for name, hint in hints.items()
        for type, meaning in (hint.__metadata__,)
    )


_Node = Annotated[int, INT, "which node, from 0"]
_Time = Annotated[float, REAL, "time since the start of the run"]
_Population = Annotated[str, STRING, "which clients; of a broker: `all`"]


class RunRow(NamedTuple):
    """The run itself: one row, written first."""

    schema_version: Annotated[int, INT, f"of all tables of the run: {VERSION}"]
    source: Annotated[str, STRING, "`simulation` or `broker`"]
    flowguard_version: Annotated[str, STRING, "version that wrote it"]
    scenario: Annotated[str, STRING, "its name; of a broker: `live`"]
    policy: Annotated[str, STRING, "overload policy in force"]
    seed: Annotated[int | None, LONG, "of all chance"]
    nodes_count: Annotated[int, INT, "broker nodes"]
    clients_count: Annotated[int | None, LONG, "clients of all populations"]
    duration_s: Annotated[float | None, REAL, "how long it was to last at most"]
    started_unix_s: Annotated[float | None, REAL, "when it began; null: virtual time"]
    trigger_at_s: Annotated[float | None, REAL, "when the disturbance began"]
    trigger_until_s: Annotated[float | None, REAL, "when the disturbance ended, null if never"]
    load_ratio: Annotated[float | None, REAL, "wanted work divided by the capacity of all nodes"]
    connect_deadline_s: Annotated[float | None, REAL, "how long clients wait for CONNACK"]
    acknowledge_deadline_s: Annotated[float | None, REAL, "until when PUBACK is of use"]
    parameters: Annotated[
        Pairs,
        TEXTS,
        "what differs from the scenario's file, by dotted key; "
        "`file_digest`: of a scenario or a trace that is none of flowguard's",
    ]
    limits: Annotated[Pairs, TEXTS, "every setting of section `flow`, by key"]
    command: Annotated[str, STRING, "runs the same again; of a broker: empty"]
    host: Annotated[str | None, STRING, "name of the machine of a broker"] = None


class SampleRow(NamedTuple):
    """Every node, ten times a second. Counts of events are since the sample before."""

    node: _Node
    t_s: _Time
    is_alive: Annotated[bool, BOOL, "whether a process runs; if not, all numbers are 0"]
    pressure_ratio: Annotated[
        float, REAL, "the worst signal divided by its objective, at most 16; overload above 1"
    ]
    pressure_queue_ratio: Annotated[float, REAL, "packets waiting for their turn"]
    pressure_loop_ratio: Annotated[float, REAL, "drift of the event loop"]
    pressure_store_ratio: Annotated[float, REAL, "durable writes"]
    pressure_replication_ratio: Annotated[float, REAL, "replicas that do not answer"]
    pressure_memory_ratio: Annotated[float, REAL, "memory"]
    cause: Annotated[str | None, STRING, "which signal is worst"]
    window: Annotated[float, REAL, "packets that every client may have in process"]
    connect_limit: Annotated[int, LONG, "CONNECTs that may be in process"]
    rung: Annotated[str, STRING, "`buffer` or `close`: what happens to new connections"]
    connects_in_process_count: Annotated[int, INT, "CONNECTs admitted and not answered"]
    connects_buffered_count: Annotated[int, INT, "CONNECTs waiting"]
    connects_buffered_bytes: Annotated[int, LONG, "their sizes"]
    backlog_count: Annotated[int | None, INT, "sockets the kernel keeps"]
    connections_count: Annotated[int, INT, "sockets accepted and not ended"]
    packets_in_process_count: Annotated[int, INT, "admitted and not done, cost units"]
    packets_waiting_count: Annotated[int | None, INT, "arrived and not admitted"]
    unfinished_bytes: Annotated[int, LONG, "payloads admitted and not done"]
    memory_bytes: Annotated[int, LONG, "of the process"]
    memory_limit_bytes: Annotated[int, LONG, "beyond it the process dies"]
    accepted_count: Annotated[int, LONG, "CONNECTs answered with success"]
    refused_count: Annotated[int, LONG, "CONNECTs answered with 137"]
    discarded_count: Annotated[int, LONG, "CONNECTs not worth an answer"]
    closed_count: Annotated[int, LONG, "sockets closed before their CONNECT was read"]
    published_count: Annotated[
        int, LONG, "PUBLISHes acknowledged; of a broker: taken on, those of QoS 0, too"
    ]
    delivered_count: Annotated[int, LONG, "messages sent to subscribers"]
    lost_count: Annotated[int, LONG, "acknowledged messages that cannot be delivered any more"]
    dropped_count: Annotated[int | None, LONG, "deliveries dropped at full queues"]
    busy_s: Annotated[
        float | None, REAL, "time the event loop worked; of a broker: CPU time of its thread"
    ]
    refusing_s: Annotated[float | None, REAL, "of it for accepting and refusing"]
    sojourn_min_s: Annotated[
        float, REAL, "the shortest time of a packet from socket to done since the last sample"
    ]
    drift_s: Annotated[
        float, REAL, "90th percentile of the loop's drift over a second, or of waiting for it"
    ]
    commit_s: Annotated[float, REAL, "90th percentile of durable writes over a second"]
    running_ratio: Annotated[
        float | None, REAL, "share of its working time in which the loop had a processor"
    ] = None
    commits_count: Annotated[int | None, LONG, "durable writes"] = None
    stored_count: Annotated[int | None, LONG, "operations in them"] = None
    payload_bytes: Annotated[int | None, LONG, "payloads of PUBLISHes taken on"] = None
    committing_s: Annotated[float | None, REAL, "sum of the durations of durable writes"] = None
    shadow_window: Annotated[
        float | None, REAL, "window of the limits that only watch; null without any"
    ] = None
    shadow_paused_count: Annotated[
        int | None, INT, "clients that they would pause and the limits in force do not"
    ] = None


class GoodputRow(NamedTuple):
    """Every population, ten times a second. Counts of events are since the row before."""

    population: _Population
    t_s: _Time
    clients_count: Annotated[int | None, LONG, "that exist by now"]
    connected_count: Annotated[int, LONG, "connected now"]
    first_connected_count: Annotated[int | None, LONG, "connected at least once by now"]
    attempts_count: Annotated[int, LONG, "attempts that began"]
    declined_count: Annotated[int, LONG, "attempts that failed"]
    wasted_count: Annotated[int | None, LONG, "CONNECTs served after their client gave up"]
    due_count: Annotated[int | None, LONG, "PUBLISHes that clients wanted to send"]
    acknowledged_count: Annotated[int, LONG, "PUBLISHes acknowledged; of a broker: as in samples"]
    in_time_count: Annotated[int | None, LONG, "of them within their deadline"]
    delivered_count: Annotated[int, LONG, "messages at subscribers; of a broker: sent to them"]


class AttemptRow(NamedTuple):
    """Every attempt to connect, when its client knows how it ended; of a broker: as it saw it, from
    the socket in its backlog to CONNACK or the end of the connection."""

    population: _Population
    client: Annotated[
        int,
        LONG,
        "its number in the population; of a broker: a number that stands for its client id while "
        "the process runs, or one below 0 if its CONNECT was not read",
    ]
    number: Annotated[int | None, INT, "how many it has made before"]
    node: _Node
    started_s: Annotated[float, REAL, "time since the start of the run"]
    ended_s: Annotated[float, REAL, "time since the start of the run"]
    outcome: Annotated[str, STRING, "`connected`, `refused`, `closed`, `timed_out`, `unreachable`"]


class LatencyRow(NamedTuple):
    """Histograms per second; buckets without an observation are left out. Of a broker: `connect` is
    an attempt that was connected, `acknowledgement` a PUBLISH of QoS 1 or 2 from its decoding to
    PUBACK or PUBREC (what it waits before, in a socket, only its client knows), `commit` a durable
    write; it knows no `delivery`."""

    population: _Population
    kind: Annotated[str, STRING, "`connect`, `acknowledgement`, `delivery`, `commit`"]
    t_s: Annotated[float, REAL, "end of the second"]
    bound_s: Annotated[float, REAL, "upper bound of the bucket; infinite: more than all bounds"]
    count: Annotated[int, LONG, "observations in this bucket"]  # type: ignore[assignment]


class DecisionRow(NamedTuple):
    """Decisions of a node, with their reason."""

    node: _Node
    t_s: _Time
    kind: Annotated[str, STRING, "`window`, `connect_limit`, `rung`"]
    before: Annotated[float, REAL, "value before; a rung: 0 buffer, 1 close"]
    after: Annotated[float, REAL, "value after"]
    pressure_ratio: Annotated[float, REAL, "of the node"]
    cause: Annotated[str | None, STRING, "the worst signal"]
    why: Annotated[str, STRING, "for a person"]


class ReasonRow(NamedTuple):
    """CONNECTs that a broker rejected, and messages that it dropped, per second; reasons that did
    not occur are left out. A simulation writes none."""

    node: _Node
    t_s: Annotated[float, REAL, "end of the second"]
    kind: Annotated[str, STRING, "`connect` or `message`"]
    reason: Annotated[str, STRING, "docs/reference/reasons.md, or the reason code of CONNACK"]
    count: Annotated[int, LONG, "how many"]  # type: ignore[assignment]


class ClientRow(NamedTuple):
    """Every client, at the end of the run; a broker writes none."""

    population: _Population
    client: Annotated[int, LONG, "its number in the population"]
    attempts_count: Annotated[int, INT, "attempts to connect"]
    first_connected_s: Annotated[float | None, REAL, "null: never"]
    acknowledged_count: Annotated[int, LONG, "PUBLISHes acknowledged"]
    in_time_count: Annotated[int, LONG, "of them within their deadline"]
    cost_units: Annotated[float, REAL, "what they cost the broker"]


class ConnectionRow(NamedTuple):
    """One connected client of a random sample after the other, ten times a second; a simulation
    writes none."""

    client: Annotated[int, LONG, "as in attempts"]
    node: _Node
    t_s: _Time
    age_s: Annotated[float, REAL, "time since its CONNACK"]
    keep_alive_s: Annotated[float, REAL, "its keep-alive; 0: none"]
    is_durable: Annotated[bool, BOOL, "whether its session is stored"]
    subscriptions_count: Annotated[int, INT, "its subscriptions"]
    received_bytes: Annotated[int, LONG, "bytes from it since its connection began"]
    in_process_count: Annotated[int, INT, "its packets admitted and not done, cost units"]
    is_paused: Annotated[bool, BOOL, "whether its packets wait for its window"]


class ViolationRow(NamedTuple):
    """Invariants that did not hold; a run ends with the first. A broker writes none."""

    node: Annotated[int | None, INT, "which node; null: the whole world"]
    t_s: _Time
    invariant: Annotated[str, STRING, "its number and name in docs/explain/overload.md"]
    detail: Annotated[str, STRING, "what was seen"]


class EndRow(NamedTuple):
    """That the run is complete; one row, written last."""

    ended_s: Annotated[float, REAL, "time since the start of the run"]
    ended_by: Annotated[str, STRING, "`duration`, `connected`, `violation` or `stopped`"]
    events_count: Annotated[int | None, LONG, "events of the simulation"]
    deaths_count: Annotated[int, INT, "processes that died of memory"]


RUN: Final = Table("run", RunRow, ("run_id",))
SAMPLES: Final = Table("samples", SampleRow, ("run_id", "t_s", "node"))
GOODPUT: Final = Table("goodput", GoodputRow, ("run_id", "t_s", "population"))
ATTEMPTS: Final = Table(
    "attempts", AttemptRow, ("run_id", "ended_s", "population", "client", "number")
)
LATENCIES: Final = Table(
    "latencies", LatencyRow, ("run_id", "t_s", "population", "kind", "bound_s")
)
DECISIONS: Final = Table("decisions", DecisionRow, ("run_id", "t_s", "node", "kind"))
REASONS: Final = Table("reasons", ReasonRow, ("run_id", "t_s", "node", "kind", "reason"))
CLIENTS: Final = Table("clients", ClientRow, ("run_id", "population", "client"))
CONNECTIONS: Final = Table("connections", ConnectionRow, ("run_id", "t_s", "client"))
VIOLATIONS: Final = Table("violations", ViolationRow, ("run_id", "t_s", "node", "invariant"))
END: Final = Table("end", EndRow, ("run_id",))
TABLES: Final = {
    table.name: table
    for table in (
        *(RUN, SAMPLES, GOODPUT, ATTEMPTS, LATENCIES, DECISIONS, REASONS),
        *(CLIENTS, CONNECTIONS, VIOLATIONS, END),
    )
}
