"""Topic: runs of brokers from a topic of Kafka into Parquet, by structured streaming.

Each message has rows of one table of one run, as an Arrow stream, and a number
(docs/operate/kafka.md, "Telemetry"). They are written as the directories that a broker writes
itself, so that everything else reads them the same way. Each message is written exactly once: a
file has the number of its last message, and a message with that number or a lower one is skipped.
So Spark may repeat a batch, the broker may send it twice, and the checkpoint may be lost. If a
message is missing, a number is missing among the files' names, and the analysis leaves the run out.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_analysis.runs.contracts import TABLE_KEY, TABLES, VERSION, VERSION_KEY, TableContract
from spark_analysis.runs.examination import Unreadable

CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
"""The package with which Spark reads Kafka, by its Maven name; it has the version of Spark."""
RUNS: Final = "runs"
MESSAGES_MAX: Final = 10_000
"""Messages of a batch, all of which are in memory at once."""
NUMBER_KEY: Final = b"flowguard.number"
_PLACE: Final = re.compile(r"kafka://([^/]+)/([a-zA-Z0-9._-]{1,249})")
_RUN: Final = re.compile(r"[\w.-]{1,100}")


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """A topic, and addresses of some servers that have it."""

    servers: str
    topic: str


@dataclass(slots=True)
class TableFile:
    """A file of one table of a run, with the rows that are still to be written."""

    number: int = -1
    message_number: int = -1
    """Number of the last message in it."""
    tables: list[pa.Table] = field(default_factory=list)


def place_of(text: str) -> TopicPlace | None:
    """Return the topic in `kafka://HOST:PORT,HOST:PORT/TOPIC`, or None if the text has another
    form."""
    match = _PLACE.fullmatch(text)
    return None if match is None else TopicPlace(match[1], match[2])


def missing_packages() -> str:
    """Return what Spark must fetch to read Kafka: nothing if its arguments bring the jar."""
    is_there = CONNECTOR in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return "" if is_there else f"org.apache.spark:{CONNECTOR}:{pyspark.__version__}"


def keep(
    spark: SparkSession,
    place: TopicPlace,
    out: Path,
    properties: Mapping[str, str] | None = None,
    *,
    every_s: float = 5.0,
) -> StreamingQuery:
    """Start; what the topic has had since its beginning goes into directories below `out`/runs.
    `properties` are those of a client of Kafka, if there are any (`client_properties`)."""
    runs = out / RUNS
    runs.mkdir(parents=True, exist_ok=True)

    def take(batch: DataFrame, _number: int) -> None:
        write(runs, messages(batch))

    return (
        spark.readStream.format("kafka")
        .options(**{f"kafka.{key}": value for key, value in (properties or {}).items()})
        .option("kafka.bootstrap.servers", place.servers)
        .option("subscribe", place.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MESSAGES_MAX)
        # Messages deleted by retention are found by their numbers, run by run; other runs go on.
        .option("failOnDataLoss", "false")
        .load()
        .writeStream.trigger(processingTime=f"{every_s} seconds")
        .option("checkpointLocation", str(out / "checkpoint-kafka"))
        .foreachBatch(take)
        .start()
    )


def messages(batch: DataFrame) -> Iterator[bytes]:
    """The values of a batch, in the order of each partition."""
    ordered = batch.select("partition", "offset", "value").orderBy("partition", "offset")
    for row in ordered.toLocalIterator():
        yield bytes(row["value"])


def write(runs: Path, values: Iterable[bytes]) -> None:
    """Write messages into files of their runs, each message once. Raises Unreadable."""
    by_table: dict[tuple[str, str], list[TableFile]] = {}
    for value in values:
        table, number, rows = _read(value)
        run_id = str(rows["run_id"][0])
        if not _RUN.fullmatch(run_id) or run_id.startswith("."):
            raise Unreadable(f"a message of the topic is of a run called {run_id!r}")
        files = by_table.setdefault((run_id, table.name), [])
        if not files:
            files.append(_last_file(runs / run_id, table.name))
        last = files[-1]
        if number <= last.message_number:
            continue
        is_missing = number > last.message_number + 1
        if is_missing or not last.tables:
            last = TableFile(last.number + (2 if is_missing else 1))
            files.append(last)
        last.message_number = number
        last.tables.append(rows)
    for (run_id, name), files in by_table.items():
        for file in files[1:]:
            _write_file(runs / run_id, name, file)


def _read(value: bytes) -> tuple[TableContract, int, pa.Table]:
    """The table, the number and the rows of a message; raises Unreadable."""
    try:
        with pa.ipc.open_stream(value) as reader:
            rows = reader.read_all()
    except (OSError, pa.ArrowException) as failure:
        raise Unreadable(f"a message of the topic cannot be read: {failure}") from failure
    said: dict[bytes, bytes] = rows.schema.metadata or {}
    table = TABLES.get(said.get(TABLE_KEY, b"").decode(errors="replace"))
    number = said.get(NUMBER_KEY, b"")
    if table is None or not number.isdigit() or not rows.num_rows:
        raise Unreadable("a message of the topic was not written by flowguard")
    version = said.get(VERSION_KEY, b"").decode(errors="replace")
    if version != str(VERSION):
        raise Unreadable(
            f"a message of the topic has schema version {version} instead of {VERSION}"
        )
    return table, int(number), rows


def _last_file(directory: Path, table: str) -> TableFile:
    found = sorted(directory.glob(f"{table}-*.parquet"))
    if not found:
        return TableFile()
    metadata: dict[bytes, bytes] = pq.read_schema(found[-1]).metadata or {}
    return TableFile(int(found[-1].stem.rpartition("-")[2]), int(metadata[NUMBER_KEY]))


def _write_file(directory: Path, table: str, file: TableFile) -> None:
    """Write a file that appears as a whole, as the examination and followers of a run expect it."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{table}-{file.number:05}.parquet"
    metadata: dict[bytes, bytes] = dict(file.tables[-1].schema.metadata)
    schema = file.tables[0].schema.with_metadata(metadata)
    unfinished = directory / f".{name}.part"
    with pq.ParquetWriter(
        unfinished, schema, compression="zstd", write_page_checksum=True
    ) as writer:
        for rows in file.tables:
            writer.write_table(rows.replace_schema_metadata(metadata))
    unfinished.rename(directory / name)
