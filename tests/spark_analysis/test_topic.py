"""Telemetry through a real Kafka: the same rows, each once, as in files."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from flowguard.address import KafkaTopic
from flowguard.stores.kafka.connection.access import access_of
from flowguard.telemetry.pending import Portion
from flowguard.telemetry.topic import RunsInTopic
from spark_analysis.runs.client_properties import client_properties
from spark_analysis.runs.examination import examine, find_runs
from spark_analysis.runs.topic import RUNS, TopicPlace, keep, missing_packages
from tests.flowguard.telemetry.test_recorder import talk
from tests.interop.broker import running_broker
from tests.spark_analysis.conftest import KAFKA_JARS
from tests.support.guarded_kafka import MODULES, PASSWORD, guarded_kafka
from tests.support.kafka import shared_kafka

pytestmark = pytest.mark.spark

BROKERS = 3


def portions_of(directory: Path) -> list[Portion]:
    """A recorded run as its broker had it, in several portions."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for path in sorted(directory.glob("*.parquet")):
        found = pq.read_table(path).drop_columns("run_id")
        columns = [column.to_pylist() for column in found.columns]
        rows.setdefault(path.name.partition("-")[0], []).extend(zip(*columns, strict=True))
    (run,), (end,) = rows.pop("run"), rows.pop("end")
    halves = [
        {name: some[: len(some) // 2] for name, some in rows.items()},
        {name: some[len(some) // 2 :] for name, some in rows.items()},
    ]
    return [
        Portion(directory.name, run, {name: some for name, some in half.items() if some})
        for half in halves
    ] + [Portion(directory.name, run, end=end)]


def test_the_reader_is_fetched_in_the_version_of_spark_unless_the_arguments_bring_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    reader = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert missing_packages() == reader
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.ui.enabled=false pyspark-shell")
    assert missing_packages() == reader
    for words in ("--packages " + reader, "--jars /jars/spark-sql-kafka-0-10_2.13-4.0.1.jar"):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{words} pyspark-shell")
        assert missing_packages() == ""


def drain(
    spark: SparkSession,
    place: TopicPlace,
    out: Path,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Read until there is no more."""
    query = keep(spark, place, out, properties, every_s=0.1)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def content(directories: Iterable[Path]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows by run and table, whatever the files."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for directory in directories:
        for path in sorted(directory.glob("*.parquet")):
            key = directory.name, path.name.partition("-")[0]
            found.setdefault(key, []).extend(pq.read_table(path).to_pylist())
    return found


@pytest.fixture(autouse=True)
def _connector() -> None:
    if not KAFKA_JARS:
        pytest.skip("what Spark reads Kafka with is missing: make kafka fetches it with Maven")


@pytest.fixture
def place() -> TopicPlace:
    return TopicPlace(shared_kafka().servers, "telemetry")


def test_telemetry_of_three_brokers_gives_the_rows_of_their_files(
    spark: SparkSession, tmp_path: Path, place: TopicPlace
) -> None:
    for number in range(BROKERS):
        folder = tmp_path / f"b{number}"
        with running_broker(folder, "--record", str(tmp_path / "files")) as broker:
            talk(broker)
    directories = find_runs([tmp_path / "files"])
    assert len(directories) == BROKERS
    senders = [RunsInTopic(KafkaTopic(place.servers, place.topic)) for _ in directories]
    portions = [portions_of(directory) for directory in directories]
    for part in range(len(portions[0])):
        for sender, own in zip(senders, portions, strict=True):
            sender.write([own[part]], 0.0)
        if not part:
            drain(spark, place, tmp_path / "out")  # And goes on after a restart.
    for sender in senders:
        sender.close()
    drain(spark, place, tmp_path / "out")

    kept = tmp_path / "out" / RUNS
    assert content(find_runs([kept])) == content(directories)
    runs, left_out = examine(find_runs([kept]))
    assert (len(runs), left_out) == (BROKERS, [])


def test_a_topic_is_read_from_a_kafka_that_asks_for_certificate_and_password(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running_broker(tmp_path / "broker", "--record", str(tmp_path / "files")) as broker:
        talk(broker)
    (directory,) = find_runs([tmp_path / "files"])
    guarded = guarded_kafka()
    place = TopicPlace(guarded.address, "telemetry")
    topic = KafkaTopic(place.servers, place.topic)
    sender = RunsInTopic(topic, access_of(guarded.settings()))
    sender.write(portions_of(directory), 0.0)
    sender.close()
    both = tmp_path / "both.pem"
    both.write_text(guarded.pair.key.read_text() + guarded.pair.cert.read_text())
    file = tmp_path / "client.properties"
    file.write_text(f"""
        security.protocol=SASL_SSL
        sasl.mechanism=PLAIN
        sasl.jaas.config={MODULES}.plain.PlainLoginModule required \\
            username="flowguard" password="{PASSWORD}";
        ssl.truststore.type=PEM
        ssl.truststore.location={guarded.authority_file}
        ssl.keystore.type=PEM
        ssl.keystore.location={both}
    """)
    drain(spark, place, tmp_path / "out", client_properties(file))
    assert content(find_runs([tmp_path / "out" / RUNS])) == content([directory])
