"""`explain` names what holds a client back, and nothing that does not."""

from flowguard.access.rules_toml import parse_toml
from flowguard.codec import Connect
from flowguard.config import MIB
from flowguard.flow import Pause, Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.explain import Explanation, explain
from flowguard.types import Properties, Publish
from tests.support.stage import Client, Stage
from tests.support.store_apart import StoreApart


def explained(stage: Stage, client_id: str) -> Explanation:
    explanation = explain(stage.node, client_id, stage.now_s)
    assert explanation is not None
    return explanation


def reasons(stage: Stage, client_id: str) -> list[str]:
    return [pause["reason"] for pause in explained(stage, client_id)["paused"]]


def slow_store(settings: dict[str, dict[str, int]] | None = None) -> tuple[Stage, Client]:
    """A publisher whose messages must be committed, by a store that does not answer."""
    stage = Stage(settings)
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    stage.hold_commits = True
    return stage, publisher


def test_nobody_is_known_by_a_name_that_never_connected() -> None:
    assert explain(Stage().node, "nobody", 0.0) is None


def test_a_client_with_nothing_to_wait_for_is_not_paused() -> None:
    stage = Stage()
    client = stage.connect("c", keep_alive_s=10)
    client.subscribe("a", "b")
    stage.now_s += 3
    shown = explained(stage, "c")
    assert shown["paused"] == shown["dropped"] == []
    assert shown["subscriptions"]["used"] == 2
    assert shown["connected"] is not None
    assert shown["connected"]["protocol"] == "5.0"
    assert shown["connected"]["silent_s"] == 3
    assert shown["connected"]["keep_alive_s"] == 15


def test_a_full_disk_is_why_things_are_refused_now() -> None:
    stage = Stage()
    stage.connect("c")
    stage.node.state.read_only = True
    assert explained(stage, "c")["why"].startswith("the store is full")


def test_the_protocol_is_named() -> None:
    stage = Stage()
    stage.connect("c", version=4)
    connected = explained(stage, "c")["connected"]
    assert connected is not None
    assert connected["protocol"] == "3.1.1"


def test_receive_maximum_is_shown_as_it_was_told_and_as_it_holds() -> None:
    stage, publisher = slow_store({"flow": {"window_max": 20}, "session": {"receive_maximum": 50}})
    for qos in (1, 2, 0):
        publisher.publish("t", b"x", qos=qos)
    connected = explained(stage, "p")["connected"]
    assert connected is not None
    assert connected["unacknowledged"] == {"used": 2, "limit": 50}
    assert connected["receive_maximum"] == publisher.connack.properties.receive_maximum == 20


def test_before_5_0_receive_maximum_is_not_told_and_does_not_hold() -> None:
    stage = Stage()
    stage.connect("c", version=4)
    connected = explained(stage, "c")["connected"]
    assert connected is not None
    assert connected["unacknowledged"] == {"used": 0, "limit": None}
    assert connected["receive_maximum"] is None


def test_a_spent_window_is_the_reason_while_packets_wait() -> None:
    stage, publisher = slow_store({"flow": {"window_max": 2}})
    for _ in range(2):
        publisher.publish("t", b"x", qos=1)
    assert reasons(stage, "p") == [], "a full window alone holds nothing back"
    publisher.publish("t", b"x", qos=1)
    assert reasons(stage, "p") == ["window"]
    connected = explained(stage, "p")["connected"]
    assert connected is not None
    assert connected["window"] == {"used": 2, "limit": 2}
    stage.release_commits()
    assert reasons(stage, "p") == []


def test_a_packet_that_does_not_fit_into_its_window_is_the_reason() -> None:
    stage, publisher = slow_store({"flow": {"window_max": 10, "cost_bytes": 1_000}})
    publisher.send(*[Publish("t", bytes(2_500), 1, packet_id=n) for n in range(1, 5)])
    (pause,) = explained(stage, "p")["paused"]
    assert pause["reason"] == "window"
    assert pause["text"] == (
        "its window is full: 9 of 10 packets in process, and the next one counts as 3"
    )


def test_a_full_journal_is_the_reason() -> None:
    stage, publisher = slow_store({"flow": {"journal_ops_max": 2}})
    for _ in range(4):
        publisher.publish("t", b"x", qos=1)
    assert reasons(stage, "p") == ["journal"]
    assert reasons(stage, "s") == [], "who sends nothing is not paused"


def test_draining_is_the_reason() -> None:
    stage = Stage()
    client = stage.connect("c")
    stage.node.drain(stage.now_s)
    stage.settle()
    client.publish("t", b"x")
    assert reasons(stage, "c") == ["draining"]


def test_a_client_that_takes_no_answers_is_not_read() -> None:
    stage = Stage({"session": {"outbox_bytes_max": 16 * 1024}})
    client = stage.connect("c")
    client.reads = False
    while client.connection.wants_read:
        client.publish("t", b"x", qos=1)
    assert reasons(stage, "c") == ["socket"]
    client.read_again()
    assert reasons(stage, "c") == []


def test_a_client_that_takes_no_answers_waits_where_others_do_not_either() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.reads = False
    for _ in range(2):
        client.publish("t", b"x", qos=1)
    assert client.connection.outbound.outbox.blocked
    assert reasons(stage, "c") == []
    others = stage.node.state.outbox_budget
    others.hold(others.limit_bytes // 2, 0)
    assert not client.connection.wants_read
    (pause,) = explained(stage, "c")["paused"]
    assert pause["reason"] == "socket"
    assert f"none of them is read above {others.limit_bytes // 2:,}" in pause["text"]


def test_a_client_is_connected_only_once_its_connect_is_answered() -> None:
    stage = Stage()
    stage.connect_durable("c").close()
    stage.hold_commits = True
    properties = Properties(session_expiry_interval=3_600)
    client = stage.attempt(Connect("c", clean_start=False, properties=properties))
    assert client.connection.pauses() == [Pause.CONNACK]
    shown = explained(stage, "c")
    assert shown["connected"] is None
    assert shown["undelivered"]["reason"] == "offline"
    stage.release_commits()
    assert client.connection.pauses() == reasons(stage, "c") == []
    assert explained(stage, "c")["connected"] is not None


def test_paused_clients_that_fill_the_nodes_memory_are_not_read_ahead_either() -> None:
    session, node = {"packet_size_max": MIB}, {"input_bytes_max": MIB}
    stage, publisher = slow_store({"session": session, "node": node, "flow": {"window_max": 1}})
    publishers = [publisher, *(stage.connect(f"p{number}") for number in range(9))]
    for each in publishers:
        each.send(*[Publish("t", bytes(60_000), 1, packet_id=number) for number in (1, 2)])
    pauses = explained(stage, "p")["paused"]
    assert [pause["reason"] for pause in pauses] == ["window", "input_bytes"]
    assert pauses[1]["text"] == "the input of all paused clients has reached its memory limit"
    assert not publisher.connection.wants_read
    stage.release_commits()
    assert reasons(stage, "p") == []


def test_the_reason_has_a_sentence_with_numbers() -> None:
    stage, publisher = slow_store({"flow": {"window_max": 1}})
    for _ in range(2):
        publisher.publish("t", b"x", qos=1)
    (pause,) = explained(stage, "p")["paused"]
    assert pause["text"] == "its window is full: 1 of 1 packets in process"


def test_a_full_queue_is_why_messages_are_dropped() -> None:
    stage = Stage({"session": {"queue_messages_max": 1}})
    client = stage.connect_durable("c")
    client.subscribe("t", qos=1)
    client.close()
    assert explained(stage, "c")["dropped"] == [Reason.OFFLINE_QOS_0]
    stage.connect("p").publish("t", b"x", qos=1)
    shown = explained(stage, "c")
    assert shown["connected"] is None
    assert shown["paused"] == []
    assert shown["dropped"] == [Reason.OFFLINE_QOS_0, Reason.QUEUE_MESSAGES]
    assert shown["queue_messages"] == {"used": 1, "limit": 1}
    assert shown["session_ends_s"] == stage.now_s + 3_600


def test_the_bound_of_a_queue_is_that_of_its_role() -> None:
    role = '[roles.anyone]\nanonymous = true\nreceive = ["#"]\nqueue_messages_max = 5\n'
    stage = Stage(hooks=Hooks(rules=parse_toml(role, "acl.toml")))
    stage.connect_durable("c")
    assert explained(stage, "c")["queue_messages"] == {"used": 0, "limit": 5}


def test_what_waits_for_an_application_elsewhere_has_no_limit() -> None:
    settings = {"session": {"application_client_ids": ["app"], "queue_messages_max": 2}}
    stage = Stage(settings, store=StoreApart())
    for name in ("app", "device"):
        client = stage.connect_durable(name)
        client.subscribe("t", qos=1)
        client.close()
    for packet_id in (1, 2, 3):
        stage.connect("p").publish("t", b"%d" % packet_id, qos=1)
    assert explained(stage, "app")["queue_messages"] == {"used": 3, "limit": None}
    assert explained(stage, "app")["queue_bytes"]["limit"] is None
    assert explained(stage, "device")["queue_messages"] == {"used": 2, "limit": 2}


def test_unacknowledged_messages_are_counted() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.subscribe("t", qos=1)
    stage.connect("p").publish("t", b"x", qos=1)
    assert explained(stage, "c")["inflight"]["used"] == 1


def full_queue(filter: str) -> tuple[Stage, Client]:
    """A subscriber that has in flight and in its queue what it may have: one message each."""
    session = {"queue_policy": "block", "queue_messages_max": 1}
    stage = Stage({"session": session})
    subscriber = stage.connect_durable("s", receive_maximum=1)
    subscriber.subscribe(filter, qos=1)
    publisher = stage.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    return stage, subscriber


def test_a_full_queue_is_named_with_how_long_it_is_waited_for() -> None:
    stage, subscriber = full_queue("t")
    stage.advance(2)
    (pause,) = explained(stage, "p")["paused"]
    assert pause["reason"] == "queue"
    assert "the queue of s, for 2.0 s now, 30 s at most: 1 of 1 messages" in pause["text"]
    subscriber.publishes()
    assert reasons(stage, "p") == []


def test_a_shared_subscription_without_room_is_named() -> None:
    stage, _ = full_queue("$share/g/t")
    (pause,) = explained(stage, "p")["paused"]
    assert "a queue of $share/g/t" in pause["text"]


def test_a_session_whose_client_is_back_has_no_end() -> None:
    stage = Stage()
    stage.connect_durable("c").close()
    assert explained(stage, "c")["session_ends_s"] is not None
    stage.connect_durable("c")
    assert explained(stage, "c")["session_ends_s"] is None
