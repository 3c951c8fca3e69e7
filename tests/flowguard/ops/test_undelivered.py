"""`explain` names the reason if a subscriber gets nothing: each cause, from the state behind it."""

from flowguard.errors import StoreError
from flowguard.ops.explain import Explanation, explain
from flowguard.records import QueueEntry
from flowguard.session.outbound import backlog
from flowguard.session.outbound.outbox import OUTBOX_WATERMARK_BYTES
from flowguard.session.states import Undelivered
from tests.support.stage import Client, Stage, StoreOnDisk, StoreWithLog

KIB = 1024


def explained(stage: Stage, client_id: str = "s") -> Explanation:
    explanation = explain(stage.node, client_id, stage.now_s)
    assert explanation is not None
    return explanation


def cause(stage: Stage) -> str:
    return explained(stage)["undelivered"]["reason"]


def text(stage: Stage) -> str:
    return explained(stage)["undelivered"]["text"]


def waiting(stage: Stage, count: int, *, receive_maximum: int = 10) -> Client:
    """Return a subscriber that reconnects to `count` queued messages."""
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    publisher = stage.connect("p")
    for number in range(count):
        publisher.publish("t", b"%d" % number, qos=1)
    return stage.connect_durable("s", receive_maximum=receive_maximum)


def test_whoever_is_not_connected_gets_nothing() -> None:
    stage = Stage()
    stage.connect_durable("s").close()
    assert cause(stage) == Undelivered.OFFLINE


def test_without_a_subscription_nothing_matches() -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    assert (cause(stage), text(stage)) == ("nothing_matches", "it has no subscription")
    subscriber.subscribe("t", qos=1)
    stage.connect("p").publish("other", b"x", qos=1)
    assert (cause(stage), text(stage)) == (
        "nothing_matches",
        "every message that matches its subscriptions was sent",
    )


def test_a_full_receive_maximum_is_the_cause_until_an_acknowledgement() -> None:
    stage = Stage()
    subscriber = waiting(stage, 3, receive_maximum=2)
    assert cause(stage) == Undelivered.RECEIVE_MAXIMUM
    assert text(stage) == "it has not acknowledged 2 of the 2 messages that may be in flight"
    assert len(subscriber.publishes()) == 3
    assert cause(stage) == Undelivered.NOTHING_MATCHES


def test_a_socket_that_takes_nothing_is_the_cause() -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=1)
    subscriber.reads = False
    publisher = stage.connect("p")
    for _ in range(2):
        publisher.publish("t", bytes(OUTBOX_WATERMARK_BYTES), qos=1)
    assert cause(stage) == Undelivered.SOCKET
    assert f"{subscriber.connection.outbound.outbox.size_bytes:,} bytes" in text(stage)
    subscriber.read_again()
    subscriber.publishes()
    assert cause(stage) == Undelivered.NOTHING_MATCHES


def test_what_all_may_have_in_flight_is_the_cause() -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    for _ in range(2):
        publisher.publish("t", b"x", qos=1)
    budget = stage.node.state.inflight.budget
    budget.hold(budget.limit_bytes - budget.used_bytes, 0)
    publisher.publish("t", b"x", qos=1)
    assert cause(stage) == Undelivered.INFLIGHT_BYTES
    assert f"all clients have {budget.used_bytes:,} of {budget.limit_bytes:,}" in text(stage)


def test_what_one_client_may_have_in_flight_is_the_cause() -> None:
    stage = Stage({"session": {"inflight_bytes_max": 4 * KIB}})
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", bytes(KIB), qos=1)
    assert cause(stage) == Undelivered.INFLIGHT_BYTES
    assert "one of them may have 4,096" in text(stage)


def test_large_messages_wait_for_fewer_in_flight_than_the_budget_has_room_for() -> None:
    stage = Stage()
    subscriber = stage.connect("s")
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    for _ in range(17):
        publisher.publish("t", bytes(4 * KIB), qos=1)
    assert cause(stage) == Undelivered.INFLIGHT_BYTES
    assert "messages of 4 KiB and more wait while 16 are in flight" in text(stage)
    assert "all clients have" not in text(stage)


def test_a_backlog_goes_no_faster_than_the_window() -> None:
    stage = Stage()
    stage.node.guard.window.resize(2)
    subscriber = waiting(stage, 5)
    assert len(subscriber.publishes(acknowledge=False)) == 2
    assert cause(stage) == Undelivered.WINDOW
    assert "2 of 2 messages in flight" in text(stage)


def test_a_backlog_waits_for_its_turn() -> None:
    stage = Stage()
    stage.hold_replays = True
    waiting(stage, 5)
    assert cause(stage) == Undelivered.TURN
    stage.hold_replays = False
    stage.settle()
    assert cause(stage) == Undelivered.NOTHING_MATCHES


def test_a_backlog_on_disk_is_told_with_its_position_and_rate() -> None:
    stage = Stage(store=StoreOnDisk())
    stage.hold_fetches = True
    count = 2 * backlog.PAGE_MAX + 1
    subscriber = waiting(stage, count)
    assert cause(stage) == Undelivered.DISK
    on_disk = explained(stage)["on_disk"]
    assert on_disk is not None
    assert on_disk == {
        "messages": count,
        "is_in_kafka": False,
        "read_pos": 0,
        "last_pos": count,
        "per_s": None,
    }
    fetch_page(stage)
    on_disk = explained(stage)["on_disk"]
    assert on_disk is not None
    assert (on_disk["messages"], on_disk["read_pos"]) == (count - 250, 250)
    assert cause(stage) == Undelivered.RECEIVE_MAXIMUM
    while len(stage.node.state.fetches) == 0:
        subscriber.publishes()
    stage.now_s += 2
    fetch_page(stage)
    on_disk = explained(stage)["on_disk"]
    assert on_disk is not None
    assert on_disk["per_s"] == 125
    stage.release_fetches()
    while subscriber.publishes():
        pass
    assert explained(stage)["on_disk"] is None
    assert not stage.node.state.progress


def fetch_page(stage: Stage) -> None:
    """The store gives one page."""
    pages = stage.node.pages
    pages.came([(fetch, fetch.entries(stage.store)) for fetch in pages.to_read()])
    stage.settle()


class Damaged(StoreOnDisk):
    """A store that cannot read its pages."""

    broken = False

    def fetch(
        self, client_id: str, after_pos: int, limit: int, **bounds: int | None
    ) -> list[QueueEntry]:
        if self.broken:
            raise StoreError("block 7 is damaged")
        return super().fetch(client_id, after_pos, limit, **bounds)  # type: ignore[arg-type]


def test_what_cannot_be_read_is_the_cause() -> None:
    store = Damaged()
    stage = Stage(store=store)
    stage.hold_fetches = True
    waiting(stage, 5)
    store.broken = True
    stage.release_fetches()
    assert explained(stage)["damage"] == "block 7 is damaged"
    assert cause(stage) == Undelivered.OFFLINE, "it was disconnected for that"
    stage.hold_fetches = True
    stage.connect_durable("s")
    assert (cause(stage), text(stage)) == (
        "damage",
        "its queue cannot be read: block 7 is damaged",
    )


def test_the_identifier_of_a_former_round_is_passed_over() -> None:
    stage = Stage()
    subscriber = stage.connect("s", receive_maximum=100)
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    publisher.publish("t", b"x", qos=1)
    session = stage.node.registry.sessions["s"]
    (packet_id,) = session.inflight.messages
    session.next_pos += 32_766  # Identifiers of QoS 1 come round.
    publisher.publish("t", b"y", qos=1)
    assert session.inflight.messages.keys() == {packet_id, packet_id + 1}
    assert cause(stage) != Undelivered.IDENTIFIER
    assert [message.payload for message in subscriber.publishes()] == [b"x", b"y"]


def test_who_reads_the_log_is_told_how_far_it_is_and_what_was_gone() -> None:
    store = StoreWithLog()
    stage = Stage({"session": {"log_threshold": 1}}, store=store)
    waiting(stage, 3).close()
    assert explained(stage)["log"] == {"messages": 3, "until_s": 0, "lost": 0, "goes_on": False} | {
        "until_s": explained(stage)["log"]["until_s"]  # type: ignore[index]
    }
    stage.connect("p").publish("t", b"gone", qos=1)
    store.log.roll()
    store.log.drop(1)
    stage.connect("p").publish("t", b"left", qos=1)
    stage.hold_fetches = True
    stage.connect_durable("s")
    assert cause(stage) == Undelivered.LOG
    assert "durable log" in text(stage)
    stage.release_fetches()
    log = explained(stage)["log"]
    assert log is not None
    # A generation is counted whole: of its four messages this session had read three.
    assert (log["messages"], log["lost"], log["goes_on"]) == (4, 4, False)
    assert cause(stage) != Undelivered.LOG
