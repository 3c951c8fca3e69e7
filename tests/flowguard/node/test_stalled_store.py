"""A store that takes very long for one commit: newcomers are answered all the same."""

from flowguard.codec.packets import Connack, Connect
from flowguard.types import MQTT_5, Properties, ReasonCode
from tests.support.stage import Client, Stage

PATIENCE_S = 8
KEPT = Properties(session_expiry_interval=3_600)


def stalled() -> Stage:
    """A commit is under way, and does not end."""
    stage = Stage({"flow": {"connect_patience_s": PATIENCE_S}})
    reader = stage.connect_durable("reader")
    reader.subscribe("t", qos=1)
    publisher = stage.connect("publisher")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    reader.close()
    stage.advance(1)
    return stage


def come(stage: Stage, client_id: str, *, durable: bool) -> Client:
    properties = KEPT if durable else Properties()
    return stage.attempt(Connect(client_id, MQTT_5, not durable, properties=properties))


def answer(client: Client) -> int | None:
    """The reason code of its CONNACK, or None if it has none."""
    return next((each.reason_code for each in client.inbox if isinstance(each, Connack)), None)


def test_a_clean_newcomer_is_let_in_while_a_commit_stalls() -> None:
    stage = stalled()
    client = come(stage, "clean", durable=False)
    stage.advance(1)
    assert answer(client) == ReasonCode.SUCCESS
    client.send_bytes(b"\xc0\x00")
    assert not client.is_closed


def test_a_clean_client_waits_for_the_end_of_its_kept_session() -> None:
    stage = stalled()
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    client = come(stage, "reader", durable=False)
    stage.advance(PATIENCE_S - 3)
    assert answer(client) is None
    stage.advance(3)
    assert answer(client) == ReasonCode.SERVER_UNAVAILABLE
    assert told == ["the store did not answer in time"]


def test_a_durable_newcomer_is_answered_within_the_patience() -> None:
    stage = stalled()
    first = [come(stage, "new", durable=True), come(stage, "reader", durable=True)]
    stage.advance(PATIENCE_S - 3)
    second = come(stage, "second", durable=True)
    assert [answer(client) for client in (*first, second)] == [None] * 3
    stage.advance(3)
    late = come(stage, "late", durable=True)
    stage.advance(0.2)
    for client in (*first, second, late):
        assert answer(client) == ReasonCode.SERVER_UNAVAILABLE
    stage.release_commits()
    assert list(stage.node.registry.sessions) == ["reader", "publisher"]
    assert stage.node.guard.gate.in_process == stage.node.guard.gate.buffered == 0
    reader = come(stage, "reader", durable=True)
    assert answer(reader) == ReasonCode.SUCCESS
    assert [message.payload for message in reader.publishes()] == [b"x"]


def test_newcomers_are_answered_while_the_store_cannot_begin_a_commit() -> None:
    stage = Stage({"flow": {"connect_patience_s": PATIENCE_S}})
    stage.hold_commits = True
    stage.node.journal.is_held = True  # As while the thread of the store does something else.
    clean, durable = come(stage, "clean", durable=False), come(stage, "new", durable=True)
    stage.advance(2)
    assert answer(clean) == ReasonCode.SUCCESS
    assert answer(durable) is None
    stage.advance(PATIENCE_S - 1)
    assert answer(durable) == ReasonCode.SERVER_UNAVAILABLE
