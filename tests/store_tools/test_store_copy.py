"""`flowguard store copy`: what one store has another one has then, whatever each is made of."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flowguard.app.stores import open_store as open_kind
from flowguard.config import Settings
from flowguard.records import (
    Append,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    SinkKind,
    WillRecord,
    key_of,
    packet_id_of,
)
from flowguard.stores import Store
from flowguard.types import Publish, SubscriptionOptions
from store_tools.command import copy as store_copy
from store_tools.command.store import store as commands
from tests.flowguard.stores.redis.benches import new_prefix, open_store, shared_server
from tests.flowguard.stores.redis.test_standing_by import Answers, claim, lease_on
from tests.flowguard.stores.test_contract import delivery, queue_of, values

GROUP = key_of(SinkKind.SHARED, "$share/g/t")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(commands, ["copy", *words])
    return done.exit_code, done.output


def on_disk(folder: Path) -> Store:
    return open_kind(Settings.model_validate({"store": {"durability": "os"}}), folder)


def fill(store: Store) -> None:
    store.commit([PutSession(name, 3_600, None) for name in ("c", "d", GROUP)])
    store.commit(
        [
            PutSession("e", 5, 1_234.5),
            PutSubscription("c", "a/+", SubscriptionOptions(2, True, True, 1, 99)),
            PutInbound("c", 7),
            PutWill("c", WillRecord(Publish("w", b"gone", 1, True), 5)),
            PutRetained(Publish("r", b"kept", 1, True), 5_000.0),
        ]
    )
    released = delivery(b"2", qos=2)
    store.commit([Append("c", 1, delivery(b"1")), Append("c", 2, released)])
    store.commit([Append("c", pos, delivery(b"%d" % pos)) for pos in range(3, 700)])
    store.commit([Append(GROUP, 1, delivery(b"x", expires_at_s=2_000_000_000.0))])
    store.commit([Release("c", 2, packet_id_of(2, 2), released), Sent("c", 5)])
    store.commit([Settle("c", 699, None), Append("d", 9, delivery()), Settle("d", 9, None)])


def seen(store: Store) -> object:
    sessions = [values(record) for record in store.sessions()]
    queues = [queue_of(store, record.client_id) for record in store.sessions()]
    retained = [(message.topic, message.payload, end_s) for message, end_s in store.retained()]
    return sessions, queues, retained


@pytest.mark.parametrize("layout", ["stream", "zset"])
def test_from_rocksdb_to_redis_and_back_nothing_is_changed(tmp_path: Path, layout: str) -> None:
    url, prefix = shared_server().unix_url, new_prefix()
    before = on_disk(tmp_path / "before")
    fill(before)
    expected = seen(before)
    before.close()
    more = ("--redis-prefix", prefix, "--redis-layout", layout)

    code, text = run(str(tmp_path / "before"), url, *more)
    assert (code, "3 sessions, 1 shared" in text, "699 queued" in text) == (0, True, True), text
    on_redis = open_store(shared_server(), prefix, layout=layout)
    assert seen(on_redis) == expected
    on_redis.close()

    assert run(url, str(tmp_path / "after"), *more)[0] == 0
    after = on_disk(tmp_path / "after")
    assert seen(after) == expected
    after.close()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = on_disk(tmp_path / "filled")
    store.commit([PutSession("c", 10, None)])
    store.close()
    return tmp_path / "filled"


def test_a_target_that_has_something_is_left_as_it_is(filled: Path) -> None:
    prefix = new_prefix()
    store = open_store(shared_server(), prefix)
    store.commit([PutSession("mine", 10, None)])
    store.close()
    code, text = run(str(filled), shared_server().unix_url, "--redis-prefix", prefix)
    assert (code, "is not empty" in text) == (1, True)
    store = open_store(shared_server(), prefix)
    assert [record.client_id for record in store.sessions()] == ["mine"]
    store.close()


@pytest.mark.parametrize(
    ("words", "complaint", "expected"),
    [
        (lambda filled: (str(filled), str(filled)), "exists; name a new", 1),
        (lambda filled: (f"{filled}x", f"{filled}y"), "there is no directory", 1),
        (lambda filled: (str(filled), "http://a"), "is no address", 2),
        (lambda filled: (str(filled), "redis://h", "--redis-layout", "list"), "layout", 2),
    ],
    ids=["target", "source", "address", "layout"],
)
def test_what_cannot_be_copied_says_why(
    filled: Path, words: Callable[[Path], tuple[str, ...]], complaint: str, expected: int
) -> None:
    code, text = run(*words(filled))
    assert (code, complaint in text) == (expected, True), text


@pytest.mark.parametrize(
    ("prefix", "complaint"),
    [("", "String should have at least 1 character"), ("{a}", "a prefix has no braces")],
)
def test_a_prefix_that_cannot_be_is_refused_in_a_line(
    filled: Path, prefix: str, complaint: str
) -> None:
    code, text = run(str(filled), "redis://h", "--redis-prefix", prefix)
    assert code == 2
    assert text.startswith(f"flowguard store copy: redis.prefix: {complaint}")
    assert text.count("\n") == 1


def test_sessions_that_read_the_durable_log_are_not_half_copied(tmp_path: Path) -> None:
    from flowguard.records import PutLogPlace

    store = on_disk(tmp_path / "log")
    store.commit([PutSession("c", 10, None), PutLogPlace("c", None)])
    store.close()
    code, text = run(str(tmp_path / "log"), str(tmp_path / "out"))
    assert (code, "reads the durable log" in text) == (1, True), text


def test_a_prefix_that_a_broker_has_is_copied_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is no directory, of which a running broker makes copies, and nothing to take over."""

    def claimed(*_: object) -> None:
        claim((0, b"host-a, process 7", 900), (0, b"host-a, process 7", 2_900), takeover=False)

    monkeypatch.setattr(store_copy, "copy", claimed)
    code, said = run("redis://here", "new")
    assert code == 1
    assert "host-a, process 7 has fg1:meta in redis://here; stop that broker" in said
    assert "store backup" not in said
    assert "--takeover" not in said


def test_a_prefix_that_a_broker_takes_over_meanwhile_is_copied_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken_over(*_: object) -> None:
        lease_on(Answers()).check((0, b"host-b"))

    monkeypatch.setattr(store_copy, "copy", taken_over)
    code, said = run("redis://here", "new")
    assert code == 1
    assert "host-b has taken over fg1:meta in redis://here" in said
    assert "stop that broker, and copy then" in said
    assert "store backup" not in said
