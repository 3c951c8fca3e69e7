"""`flowguard store import-tbmq`: queues that a TBMQ has left on Redis become ours."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.redis.literal import LiteralQueue
from flowguard.app.stores import open_store
from flowguard.config import Settings
from flowguard.records import NEVER_S
from flowguard.stores import Store
from flowguard.types import Properties, SubscriptionOptions
from store_tools.command.store import store as commands
from tests.flowguard.stores.redis.benches import new_prefix
from tests.support.redis_server import RedisServer, redis_server

MESSAGE = {"packetType": "PUBLISH", "time": 1, "topicName": "a/b", "qos": 1, "retained": False}
RICH = {
    "subscriptionIds": [3, 4],
    "userProperties": {"props": [{"k": "one", "v": "1"}, {"k": "one", "v": "2"}]},
    "payloadFormatIndicator": 1,
    "contentType": "text/plain",
    "responseTopic": "answers",
    "correlationData": b64encode(b"\0\xff").decode(),
    "msgExpiryInterval": 1_000,
}


def base64(text: bytes) -> str:
    return b64encode(text).decode()


@pytest.fixture
def left(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with what a TBMQ has left on it, written by the scripts that it publishes."""
    with redis_server(tmp_path / "redis") as server:
        yield server


def fill(client: Any) -> None:
    queue = LiteralQueue(client, "one")
    queue.add(*(base64(b"%d" % number) for number in range(1, 601)), **MESSAGE)
    queue.remove(2)
    client.set("{one}_messages_3", json.dumps({**MESSAGE, "packetId": 3, "packetType": "PUBREL"}))
    client.delete("{one}_messages_4")  # Its time is over.
    rich = LiteralQueue(client, "ünïcode}{")
    rich.add(base64(b"x"), **(MESSAGE | RICH | {"qos": 2, "retained": True}))


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, ["import-tbmq", *words])
    return done.exit_code, done.output


def on_disk(folder: Path) -> Store:
    return open_store(Settings.model_validate({"store": {"durability": "os"}}), folder)


def test_queues_of_tbmq_are_there_in_order_with_all_their_properties(
    left: RedisServer, tmp_path: Path
) -> None:
    with left.client() as client:
        fill(client)
    file = tmp_path / "subscriptions.csv"
    file.write_text("one,a/+,1\ntwo,#,0\n")
    words = (left.url, str(tmp_path / "out"), "--subscriptions", str(file))
    code, text = run(*words, "--session-expiry", "99")
    assert (code, "3 sessions, 2 subscriptions and 599 queued" in text) == (0, True), text
    with closing(on_disk(tmp_path / "out")) as store:
        sessions = {record.client_id: record for record in store.sessions()}
        assert list(sessions) == ["one", "two", "ünïcode}{"]
        assert {record.expiry_interval_s for record in sessions.values()} == {99}
        assert sessions["one"].subscriptions == {"a/+": SubscriptionOptions(1)}
        entries = store.fetch("one", 0, 1_000)
        payloads = [each.delivery and each.delivery.message.payload for each in entries]
        assert payloads == [b"1", None, *(b"%d" % number for number in range(5, 601))]
        assert entries[1].packet_id == 3
        assert {each.delivery.expires_at_s for each in entries if each.delivery} == {NEVER_S}
        assert 3 not in {each.packet_id for each in entries if each.delivery}
        (entry,) = store.fetch("ünïcode}{", 0, 10)
        assert entry.delivery is not None
        delivery, message = entry.delivery, entry.delivery.message
        assert (delivery.qos, delivery.retain, delivery.identifiers) == (2, True, (3, 4))
        assert delivery.expires_at_s != NEVER_S
        assert (message.topic, message.payload) == ("a/b", b"x")
        assert message.properties == Properties(
            payload_format_indicator=1,
            message_expiry_interval=1_000,
            content_type="text/plain",
            response_topic="answers",
            correlation_data=b"\0\xff",
            user_properties=(("one", "1"), ("one", "2")),
        )
    with left.client() as client:
        assert client.zcard("{one}_messages") == 599  # Nothing was changed there.


def test_what_cannot_be_read_is_named_and_the_rest_is_there(
    left: RedisServer, tmp_path: Path
) -> None:
    with left.client() as client:
        LiteralQueue(client, "c").add(*map(base64, (b"1", b"2", b"3", b"4")), **MESSAGE)
        client.set("{c}_messages_2", "no JSON")
        client.set("{c}_messages_3", json.dumps({**MESSAGE, "packetId": 3, "topicName": "a/#"}))
    code, text = run(left.url, str(tmp_path / "out"))
    assert (code, "2 messages could not be read" in text) == (1, True), text
    assert "{c}_messages_2" in text.replace("\n", "")
    assert "topic 'a/#'" in text.replace("\n", "")
    with closing(on_disk(tmp_path / "out")) as store:
        found = [each.delivery and each.delivery.message.payload for each in store.fetch("c", 0, 9)]
        assert found == [b"1", b"4"]


def test_an_import_into_redis_takes_prefixes_on_both_sides(left: RedisServer) -> None:
    with left.client() as client:
        LiteralQueue(client, "c").add(base64(b"1"), **MESSAGE)
        (message_key,) = client.zrange("{c}_messages", 0, 0)
        client.rename(message_key, "t*:" + message_key.decode())
        client.delete("{c}_messages")
        client.zadd("t*:{c}_messages", {"t*:" + message_key.decode(): 1})
        client.zadd("tx:{d}_messages", {"x": 1})
    prefix = new_prefix()
    code, text = run(left.url, left.url, "--tbmq-prefix", "t*:", "--redis-prefix", prefix)
    assert (code, "1 session, 0 subscriptions and 1 queued" in text) == (0, True), text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("c,a/#/b,1", "is no topic filter"),
        ("c,a", "is not CLIENT_ID,FILTER,QOS"),
        ("c,a,3", "is not CLIENT_ID,FILTER,QOS"),
        ("c,$share/g/a,1", "shared subscriptions are not imported"),
    ],
)
def test_a_wrong_line_among_the_subscriptions_is_named(
    tmp_path: Path, line: str, complaint: str
) -> None:
    file = tmp_path / "subscriptions.csv"
    file.write_text(f"c,fine,1\n{line}\n")
    words = ("redis://127.0.0.1:1", str(tmp_path / "out"), "--subscriptions", str(file))
    code, text = run(*words)
    assert (code, complaint in text.replace("\n", " "), "line 2" in text) == (1, True, True), text
    assert not (tmp_path / "out").exists()


def test_a_server_without_such_queues_and_a_target_that_is_taken_are_refused(
    left: RedisServer, tmp_path: Path
) -> None:
    code, text = run(left.url, str(tmp_path / "out"))
    assert (code, "no queue of TBMQ" in text) == (1, True), text
    code, text = run(left.url, str(tmp_path))
    assert (code, "exists; name a new directory" in text.replace("\n", " ")) == (1, True), text
