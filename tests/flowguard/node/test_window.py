"""The admission window: packets of a client that may be in process at once."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from flowguard.session.inbound import RUN_MAX
from flowguard.types import Publish, SubscriptionOptions
from tests.support.stage import Client, Stage


def slow_store(stage: Stage, window: int) -> Client:
    """A publisher whose messages must be durable, in a node with this window and a slow store."""
    stage.connect_durable("s").subscribe("a", qos=2)
    publisher = stage.connect("p", version=4)
    stage.node.window.resize(window)
    stage.hold_commits = True
    return publisher


def numbered(count: int, *, qos: int = 1) -> list[Packet]:
    return [Publish("a", b"%d" % number, qos, packet_id=number) for number in range(1, count + 1)]


def in_process(client: Client) -> int:
    assert client.connection.inbound is not None
    return client.connection.inbound.window.in_process


def identifiers(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets]  # type: ignore[union-attr]


@pytest.mark.parametrize("window", [1, 2, 10, 100])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_is_stopped_at_exactly_its_window(window: int, qos: int) -> None:
    stage = Stage({"session": {"receive_maximum": 1_000}})
    publisher = slow_store(stage, window)
    publisher.send(*numbered(150, qos=qos))
    assert in_process(publisher) == window
    assert stage.node.counters.publish_received == window
    assert publisher.take() == []
    stage.release_commits()
    assert in_process(publisher) == 0
    assert identifiers(publisher.take()) == list(range(1, 151))


def test_a_run_ends_after_so_many_packets_and_the_rest_has_another_turn() -> None:
    stage = Stage()
    publisher = slow_store(stage, 100)
    connection, received = publisher.connection, []
    connection.receive_data(b"".join(encode(packet, 4) for packet in numbered(40)), stage.now_s)
    while connection.queued:
        received.append(stage.node.counters.publish_received)
        assert stage.turns.run_round()
    assert received == [RUN_MAX, 2 * RUN_MAX]
    assert stage.node.counters.publish_received == 40


def test_what_comes_for_a_client_that_waits_for_its_turn_is_read_and_waits_with_the_rest() -> None:
    stage = Stage()
    publisher = slow_store(stage, 100)
    connection = publisher.connection
    first, second = numbered(2 * RUN_MAX), numbered(3 * RUN_MAX)[2 * RUN_MAX :]
    for packets in (first, second):
        assert connection.receive_data(b"".join(encode(p, 4) for p in packets), stage.now_s)
        assert stage.node.counters.publish_received == RUN_MAX
    stage.settle()
    stage.release_commits()
    assert identifiers(publisher.take()) == list(range(1, 3 * RUN_MAX + 1))


def test_each_commit_lets_as_many_in_as_it_finished() -> None:
    stage = Stage()
    publisher = slow_store(stage, 3)
    publisher.send(*numbered(8))
    seen = []
    for _ in range(4):
        assert stage.held is not None
        stage.finish_commit()
        seen.append(identifiers(publisher.take()))
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8], []]


def test_subscribe_and_unsubscribe_count_as_well(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    stage.node.window.resize(2)
    stage.hold_commits = True
    client.send(
        Subscribe(1, (("a", SubscriptionOptions()),)),
        Unsubscribe(2, ("a",)),
        Subscribe(3, (("b", SubscriptionOptions()),)),
    )
    assert in_process(client) == 2
    assert len(stage.node.router.table) == 0
    stage.release_commits()
    assert identifiers(client.take()) == [1, 2, 3]
    assert len(stage.node.router.table) == 1


def test_qos_0_waits_behind_the_others_in_order() -> None:
    stage = Stage()
    publisher = slow_store(stage, 1)
    witness = stage.connect("w")
    stage.hold_commits = False
    witness.subscribe("b")
    stage.hold_commits = True
    publisher.send(*numbered(2), Publish("b", b"last"))
    assert witness.publishes() == []
    stage.release_commits()
    assert [message.payload for message in witness.publishes()] == [b"last"]


@pytest.mark.spec("MQTT-3.12.4-1", "v3:MQTT-3.12.4-1")
def test_every_pingreq_is_answered(version: int) -> None:
    client = Stage().connect("c", version=version)
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    client.send(Pingreq(), Pingreq(), Pingreq())
    assert client.take() == [Pingresp()] * 3


@pytest.mark.spec("MQTT-3.12.4-1", "v3:MQTT-3.12.4-1")
def test_a_paused_client_gets_its_pingresp_ahead_of_what_waits() -> None:
    stage = Stage()
    publisher = slow_store(stage, 1)
    publisher.send(*numbered(3), Pingreq())
    assert publisher.take() == [Pingresp()]
    publisher.send(Pingreq())
    assert publisher.take() == [Pingresp()]
    stage.release_commits()
    assert identifiers(publisher.take()) == [1, 2, 3]


def test_acknowledgements_of_a_paused_client_are_processed() -> None:
    stage = Stage({"session": {"inflight_max": 3}})
    client = stage.connect("c")
    client.subscribe("b", qos=2)
    other = stage.connect("other")
    for qos in (1, 2, 2):
        other.publish("b", b"x", qos=qos)
    one, two, three = client.publishes(acknowledge=False)
    client.send(Pubrec(three.packet_id))
    client.expect(Pubrel)
    stage.connect_durable("s").subscribe("a", qos=2)
    stage.node.window.resize(1)
    stage.hold_commits = True
    client.send(*numbered(5))
    client.send(Puback(one.packet_id), Pubrec(two.packet_id), Pubcomp(three.packet_id))
    assert client.take() == [Pubrel(two.packet_id)]
    assert set(stage.node.registry.sessions["c"].inflight.messages) == {two.packet_id}
    assert in_process(client) == 1


def test_pubrel_of_a_paused_client_is_processed() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("a", qos=2)
    client = stage.connect("c")
    client.send(Publish("b", b"x", 2, packet_id=100))
    client.take()
    stage.node.window.resize(1)
    stage.hold_commits = True
    client.send(*numbered(5), Pubrel(100))
    assert client.take() == [Pubcomp(100)]


def test_a_paused_client_still_receives() -> None:
    stage = Stage()
    other = stage.connect("other")
    stage.connect_durable("s").subscribe("a", qos=2)
    client = stage.connect("c")
    client.subscribe("b")
    stage.node.window.resize(1)
    stage.hold_commits = True
    client.send(*numbered(5))
    other.publish("b", b"news")
    assert [message.payload for message in client.publishes()] == [b"news"]


def test_one_paused_client_stops_nobody_else(version: int) -> None:
    stage = Stage()
    other = stage.connect("other", version=version)
    publisher = slow_store(stage, 1)
    publisher.send(*numbered(5))
    other.send(Publish("b", b"x"), Pingreq())
    assert other.take() == [Pingresp()]
    assert stage.node.counters.publish_received == 2


def test_a_shrinking_window_cancels_nothing_and_admits_nothing() -> None:
    stage = Stage()
    publisher = slow_store(stage, 10)
    publisher.send(*numbered(8))
    stage.node.window.resize(2)
    publisher.send(*(Publish("a", b"x", 1, packet_id=n) for n in range(9, 15)))
    assert in_process(publisher) == 8
    stage.release_commits()
    assert identifiers(publisher.take()) == list(range(1, 15))


def test_a_paused_client_is_read_ahead_only_so_far() -> None:
    stage = Stage()
    publisher = slow_store(stage, 1)
    assert publisher.connection.wants_read
    large = Publish("a", bytes(1_000), 1, packet_id=1)
    publisher.send(large)
    assert publisher.connection.wants_read, "for the control lane"
    publisher.send(*[large] * 70)
    assert not publisher.connection.wants_read
    stage.release_commits()
    assert publisher.connection.wants_read


@pytest.mark.parametrize("limit", [{"journal_ops_max": 3}, {"journal_bytes_max": 1_000}])
def test_a_full_journal_pauses_everybody_and_lets_all_go_on(limit: dict[str, int]) -> None:
    stage = Stage({"flow": limit})
    stage.connect_durable("s").subscribe("a", qos=2)
    first, second = (stage.connect(name, version=4) for name in ("first", "second"))
    stage.hold_commits = True
    for number in range(1, 7):
        first.send(Publish("a", b"%d" % number, 1, packet_id=number))
    assert stage.node.journal.is_full
    taken = stage.node.counters.publish_received
    assert 3 <= taken < 6
    second.send(Publish("b", b"x", 1, packet_id=1), Pingreq())
    assert second.take() == [Pingresp()]
    assert stage.node.counters.publish_received == taken
    stage.release_commits()
    assert identifiers(first.take()) == [1, 2, 3, 4, 5, 6]
    assert identifiers(second.take()) == [1]
    assert not stage.node.journal.is_full


def test_what_waits_when_the_connection_is_cut_is_never_admitted() -> None:
    stage = Stage()
    publisher = slow_store(stage, 2)
    publisher.send(*numbered(5))
    publisher.connection.end(None, stage.now_s)
    stage.release_commits()
    assert publisher.take() == []
    assert stage.node.counters.publish_received == 2
    again = stage.connect_durable("s")
    assert [message.payload for message in again.publishes()] == [b"1", b"2"]
