"""Runs as messages of a topic: what arrives is a run as on the disk, whatever was repeated."""

import asyncio
import os
from pathlib import Path

import pytest

from flowguard.telemetry.pending import Portion
from flowguard.telemetry.schema import DECISIONS, END, RUN
from flowguard.telemetry.topic import RunMessages
from spark_analysis.runs.examination import Unreadable, examine, find_runs
from spark_analysis.runs.topic import TopicPlace, place_of, write
from tests.flowguard.telemetry.test_recorder import MESSAGES, rows, talk
from tests.interop.broker import OURS, running_broker, start
from tests.spark_analysis.recorded import values
from tests.support.kafka import Kafka, shared_kafka

RUN_ROW = values(RUN, {"schema_version": 1, "source": "broker", "command": ""})
END_ROW = values(END, {"ended_s": 9.0, "ended_by": "stopped"})


def decision(t_s: float) -> tuple[object, ...]:
    return values(DECISIONS, {"t_s": t_s, "kind": "window", "why": "x"})


def portions(run_id: str = "live-1") -> list[Portion]:
    """A run in four portions, three of which have a decision each."""
    some = [Portion(run_id, RUN_ROW, {"decisions": [decision(float(i))]}) for i in range(3)]
    return [*some, Portion(run_id, RUN_ROW, end=END_ROW)]


def messages() -> list[bytes]:
    """The row of table `run`, three decisions, the end."""
    encoding = RunMessages()
    return [value for portion in portions() for value in encoding.values(portion)]


def decided(folder: Path) -> list[float]:
    return [row["t_s"] for row in rows(folder / "live-1", "decisions")]


def test_each_message_counts_once_however_often_it_comes(tmp_path: Path) -> None:
    sent = messages()
    assert len(sent) == 5
    write(tmp_path, [*sent[:2], *sent[:2], sent[2]])  # A producer may repeat what it has sent,
    write(tmp_path, sent[1:4])  # and Spark a batch.
    write(tmp_path, sent)
    (run,), left_out = examine(find_runs([tmp_path]))
    assert (run.run_id, left_out) == ("live-1", [])
    assert decided(tmp_path) == [0.0, 1.0, 2.0]


def test_a_batch_that_was_written_in_part_is_completed(tmp_path: Path) -> None:
    write(tmp_path, messages())
    (file,) = (tmp_path / "live-1").glob("decisions-*")
    file.rename(file.with_name(f".{file.name}.part"))
    write(tmp_path, messages())
    assert decided(tmp_path) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("together", [True, False])
def test_a_run_of_which_a_message_is_missing_is_left_out(tmp_path: Path, together: bool) -> None:
    run, first, _, last, end = messages()
    batches = [[run, first, last, end]] if together else [[run, first], [last], [end]]
    for batch in batches:
        write(tmp_path, batch)
    found, (left_out,) = examine(find_runs([tmp_path]))
    assert not found
    assert "decisions-00001.parquet is missing" in left_out.reason


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff" * 100])
def test_a_message_of_somebody_else_is_an_error_with_a_reason(tmp_path: Path, value: bytes) -> None:
    with pytest.raises(Unreadable, match="message of the topic"):
        write(tmp_path, [value])


def test_a_run_cannot_be_called_like_a_place_outside_of_the_directory(tmp_path: Path) -> None:
    (value, *_) = RunMessages().values(Portion("../x", RUN_ROW))
    with pytest.raises(Unreadable, match="called"):
        write(tmp_path / "runs", [value])


def test_a_topic_is_named_with_its_servers() -> None:
    assert place_of("kafka://a:1,b:2/t.x") == TopicPlace("a:1,b:2", "t.x")
    assert [place_of(text) for text in ("runs", "kafka://a:1", "kafka://a:1/", "kafka:/a/b")] == (
        [None] * 4
    )


# --- a real server -------------------------------------------------------------------------------


def read(server: Kafka, topic: str) -> list[bytes]:
    """Everything in the topic, in the order of each partition."""
    return asyncio.run(_read(server, topic))


async def _read(server: Kafka, topic: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=server.servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        found = []
        parts = [TopicPartition(topic, number) for number in range(4)]
        ends = await consumer.end_offsets(parts)
        consumer.assign([part for part in parts if ends[part]])
        while len(found) < sum(ends.values()):
            for some in (await consumer.getmany(timeout_ms=1_000)).values():
                found += [each.value for each in some]
        return found
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_a_broker_records_itself_into_a_topic_as_it_would_into_a_directory(tmp_path: Path) -> None:
    server = shared_kafka()
    place = f"kafka://{server.servers}/of-a-broker"
    with running_broker(tmp_path, "--record", place) as broker:
        talk(broker)
    write(tmp_path / "runs", read(server, "of-a-broker"))
    (run,), left_out = examine(find_runs([tmp_path / "runs"]))
    assert (left_out, run.end["ended_by"]) == ([], "stopped")
    samples = rows(Path(run.directory), "samples")
    assert sum(row["published_count"] for row in samples) == MESSAGES


def test_without_a_server_the_broker_says_so_and_does_not_start(tmp_path: Path) -> None:
    pytest.importorskip("aiokafka")
    words = ["serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    process = start(*words, "--record", "kafka://127.0.0.1:1/t", program=OURS)
    _, said = process.communicate(timeout=None)
    assert process.returncode == 2, said
    assert "no Kafka answers at 127.0.0.1:1" in said
    assert not os.path.exists(tmp_path / "data")
