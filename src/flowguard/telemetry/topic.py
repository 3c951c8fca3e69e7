"""RunsInTopic: a broker's runs as messages in a Kafka topic.

A message has rows of one table of one run, as an Arrow stream with the table's own schema: the same
rows, types and metadata as in the Parquet files. The key is the run, so that a run is in one
partition, in order. The messages of each table in a run are numbered, so that a reader can skip
duplicates and detect missing ones.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa

from flowguard.address import KafkaTopic
from flowguard.errors import ConfigError, StallError, StoreError
from flowguard.stores.kafka.connection.access import NOBODY, KafkaAccess
from flowguard.stores.kafka.connection.errors import NoTopicError, no_server
from flowguard.stores.kafka.connection.link import KafkaLink, KafkaMessage
from flowguard.telemetry.pending import Portion, Row
from flowguard.telemetry.schema import END, RUN, TABLES, Table

NUMBER_KEY: Final = b"flowguard.number"
PARTITIONS: Final = 4
REPLICAS_MAX: Final = 3
"""Maximum number of replicas of a new topic; fewer if there are fewer nodes."""
MESSAGE_ROWS: Final = 1_000
"""Maximum rows per message; for the widest table they stay below half of Kafka's limit."""


@final
class RunMessages:
    """The messages of one broker's runs, one after another."""

    def __init__(self) -> None:
        self._run_id: str | None = None
        self._numbers: dict[str, int] = {}
        """Number of the next message, by table."""

    def values(self, portion: Portion) -> Iterator[bytes]:
        """Yield the messages for a portion; the row of table `run` comes first in a run."""
        if portion.run_id != self._run_id:
            self._run_id = portion.run_id
            self._numbers = dict.fromkeys(TABLES, 0)
            yield self._value(portion, RUN, [portion.run])
        for name, rows in portion.rows.items():
            for start in range(0, len(rows), MESSAGE_ROWS):
                yield self._value(portion, TABLES[name], rows[start : start + MESSAGE_ROWS])
        if portion.end is not None:
            yield self._value(portion, END, [portion.end])

    def _value(self, portion: Portion, table: Table, rows: Sequence[Row]) -> bytes:
        number = self._numbers[table.name]
        self._numbers[table.name] = number + 1
        batch = table.batch(portion.run_id, list(zip(*rows, strict=True)))
        own = {NUMBER_KEY: str(number).encode()}
        batch = batch.replace_schema_metadata({**batch.schema.metadata, **own})
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        written: bytes = out.getvalue().to_pybytes()
        return written


@final
class RunsInTopic:
    """The runs of one broker in a topic, which other brokers may share."""

    def __init__(self, place: KafkaTopic, access: KafkaAccess = NOBODY) -> None:
        """Connects, and creates a missing topic; raises ConfigError, StoreError."""
        self._topic = place.topic
        self._link = KafkaLink(place.servers, access=access)
        self._is_closed = False
        self._messages = RunMessages()
        try:
            self._partitions_count = self._prepare()
        except StallError as error:
            self._link.close()
            raise no_server(place.servers, error) from error
        except StoreError:
            self._link.close()
            raise

    def _prepare(self) -> int:
        link, topic = self._link, self._topic
        if not link.partitions_of(topic):
            replicas = min(link.nodes_count(), REPLICAS_MAX)
            configs = {"min.insync.replicas": str(max(1, replicas - 1))}
            link.create_topic(topic, PARTITIONS, replicas, configs)
        return link.partitions_of(topic) or PARTITIONS

    @property
    def run_bytes(self) -> int:
        """Always 0, because the topic's own retention decides how long runs are kept."""
        return 0

    @property
    def used_bytes(self) -> int:
        return 0

    def write(self, portions: Sequence[Portion], now_s: float) -> None:
        """Send rows; return when all replicas have them. While Kafka is unavailable, it waits."""
        messages: dict[tuple[str, int], list[KafkaMessage]] = {}
        for portion in portions:
            key = portion.run_id.encode()
            partition = self._topic, zlib.crc32(key) % self._partitions_count
            of_partition = messages.setdefault(partition, [])
            of_partition += [KafkaMessage(key, value) for value in self._messages.values(portion)]
        messages = {partition: some for partition, some in messages.items() if some}
        while messages and not self._is_closed:
            try:
                self._link.append(messages)
                return
            except StallError:
                continue  # Rows that exceed the limits meanwhile are counted as dropped.
            except NoTopicError:
                # A starting server does not know the topic yet, or it was deleted.
                self._make_again()
            except StoreError as error:
                raise OSError(str(error)) from error

    def _make_again(self) -> None:
        try:
            self._prepare()
        except StallError:
            return
        except (ConfigError, StoreError) as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        self._is_closed = True
        self._link.close()
