"""While another broker may own the store, a node acknowledges nothing."""

import pytest

from flowguard.codec.packets import Connack, Connect, Pingreq, Pingresp, Puback, Suback, Subscribe
from flowguard.ops.explain import pauses_of
from flowguard.stores.base import StoreLoad
from flowguard.types import MQTT_5, Publish, ReasonCode, SubscriptionOptions
from tests.support.stage import Client, Stage

DOUBT = StoreLoad(in_doubt=True)
BURST = 8


@pytest.fixture
def stage() -> Stage:
    """A node that has lost sight of its store; commits would say whose it is."""
    stage = Stage()
    stage.connect("reader").subscribe("t")
    return stage


def begin(stage: Stage) -> None:
    stage.node.observe_store(DOUBT)


def end(stage: Stage) -> None:
    stage.node.observe_store(StoreLoad())
    stage.node.turn(stage.now_s)
    stage.settle()


def test_qos_0_and_pings_go_on_in_doubt(stage: Stage) -> None:
    reader, client = stage.connect("r"), stage.connect("p")
    reader.subscribe("t")
    begin(stage)
    for number in range(2 * BURST):
        client.send(*[Publish("t", b"%d" % number)] * (1 + number % BURST))
    client.send(Pingreq())
    client.expect(Pingresp)
    assert len(reader.publishes()) == BURST * (BURST + 1)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("count", [1, BURST])
def test_publish_without_subscriber_is_answered_when_doubt_is_over(
    stage: Stage, qos: int, count: int
) -> None:
    client = stage.connect("p")
    begin(stage)
    client.send(*(Publish("nobody", b"", qos, packet_id=1 + each) for each in range(count)))
    client.send(Pingreq())
    assert client.take() == [Pingresp()]
    assert stage.node.counters.publish_received == 0
    (cause,) = pauses_of(stage.node, client.connection, stage.now_s)
    assert "another broker may own the sessions" in cause["text"]
    end(stage)
    assert len(client.take()) == count
    assert stage.node.counters.publish_received == count


def test_suback_and_unsuback_leave_when_doubt_is_over(stage: Stage) -> None:
    client = stage.connect("c")
    begin(stage)
    client.send(Subscribe(1, (("a", SubscriptionOptions(1)),)))
    assert client.take() == []
    end(stage)
    assert client.expect(Suback).reason_codes == (1,)
    begin(stage)
    with pytest.raises(AssertionError, match="no Unsuback"):
        client.unsubscribe("a")
    end(stage)
    assert len(client.take()) == 1


def attempt(stage: Stage) -> Client:
    return stage.attempt(Connect("new", MQTT_5, clean_start=True))


def test_clean_session_gets_connack_after_a_commit_in_doubt(stage: Stage) -> None:
    stage.hold_commits = True
    begin(stage)
    client = attempt(stage)
    stage.node.store_away(stage.now_s)
    assert client.take() == []
    stage.release_commits()
    assert client.expect(Connack).reason_code == 0


def test_clean_session_is_rejected_after_the_connect_timeout_in_doubt(stage: Stage) -> None:
    stage.hold_commits = True
    begin(stage)
    client = attempt(stage)
    stage.now_s += stage.node.settings.flow.connect_patience_s + 1
    stage.node.store_away(stage.now_s)
    stage.settle()
    assert client.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE


def test_clients_that_leave_in_doubt_are_forgotten(stage: Stage) -> None:
    client = stage.connect("p")
    begin(stage)
    client.publish("nobody", qos=1)
    assert len(stage.node.router.peers.ordered_answers.blocked) == 1
    client.close()
    stage.advance(0.2)
    assert not stage.node.router.peers.ordered_answers.blocked


def test_publisher_is_answered_once_if_doubt_comes_again(stage: Stage) -> None:
    client = stage.connect("p")
    for _ in range(3):
        begin(stage)
        client.publish("nobody", qos=1)
        stage.advance(0.5)
        assert client.take() == []
        end(stage)
        assert [type(packet) for packet in client.take()] == [Puback]
