"""A node that is killed between answer and commit: what was answered must be true afterwards.

MQTT 3.1.1 lets clients repeat what they sent on the same connection: everything comes twice.
"""

import pytest

from flowguard.codec.packets import Connack, Connect, Puback, Pubcomp, Pubrec, Pubrel
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.support.stage import Stage

VERSIONS = pytest.mark.parametrize("version", [MQTT_311, MQTT_5])


@VERSIONS
@pytest.mark.spec("MQTT-4.3.3-11", "MQTT-4.3.3-12")
def test_a_repeated_pubrel_is_answered_no_sooner_than_the_first(version: int) -> None:
    """PUBCOMP frees the identifier: a node that still knew it would swallow the next message."""
    stage = Stage()
    stage.connect_durable("s").subscribe("t", qos=2)
    client = stage.connect_durable("p", version=version)
    client.send(Publish("t", b"1", 2, packet_id=1))
    client.expect(Pubrec)
    stage.hold_commits = True
    client.send(Pubrel(1), Pubrel(1))
    assert client.take() == []
    stage.restart()
    client = stage.connect_durable("p", version=version)
    client.send(Pubrel(1))
    client.expect(Pubcomp)
    client.send(Publish("t", b"2", 2, packet_id=1))
    client.expect(Pubrec)
    payloads = [packet.payload for packet in stage.connect_durable("s").publishes()]
    assert payloads == [b"1", b"2"]


@VERSIONS
def test_pubrels_that_wait_are_each_answered(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("p", version=version)
    client.send(Publish("t", b"1", 2, packet_id=1))
    client.expect(Pubrec)
    stage.hold_commits = True
    client.send(Pubrel(1), Pubrel(1), Pubrel(7))
    stage.release_commits()
    answers = client.take()
    assert [(type(answer), answer.packet_id) for answer in answers] == [
        (Pubcomp, 1),
        (Pubcomp, 1),
        (Pubcomp, 7),
    ]


@VERSIONS
def test_a_repeated_pubrec_is_answered_no_sooner_than_the_first(version: int) -> None:
    """PUBREL lets the client forget: a node that forgot the PUBREC would deliver twice."""
    stage = Stage()
    client = stage.connect_durable("s", version=version)
    client.subscribe("t", qos=2)
    stage.connect("p").publish("t", b"1", qos=2)
    packet_id = client.expect(Publish).packet_id
    stage.hold_commits = True
    client.send(Pubrec(packet_id), Pubrec(packet_id))
    assert client.take() == []
    stage.release_commits()
    assert {type(packet) for packet in client.take()} == {Pubrel}
    client.send(Pubcomp(packet_id))
    stage.restart()
    assert stage.connect_durable("s", version=version).publishes() == []


@VERSIONS
def test_a_pubrel_before_its_pubrec_frees_nothing(version: int) -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("t", qos=2)
    client = stage.connect_durable("p", version=version)
    stage.hold_commits = True
    client.send(Publish("t", b"1", 2, packet_id=1), Pubrel(1))
    assert client.is_closed
    again = stage.connect_durable("p", version=version)
    again.send(Publish("t", b"1", 2, dup=True, packet_id=1))
    stage.release_commits()
    again.expect(Pubrec)
    again.send(Pubrel(1))
    assert len(stage.connect_durable("s").publishes()) == 1


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_acknowledged_before_it_is_durable(version: int, qos: int) -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("t", qos=2)
    client = stage.connect_durable("p", version=version)
    stage.hold_commits = True
    client.publish("t", b"1", qos=qos)
    assert client.take() == []
    stage.release_commits()
    assert [type(packet) for packet in client.take()] == [Puback if qos == 1 else Pubrec]
    stage.restart()
    assert [packet.payload for packet in stage.connect_durable("s").publishes()] == [b"1"]


@VERSIONS
@pytest.mark.spec("MQTT-3.1.2-4")
def test_a_session_that_was_replaced_does_not_come_back(version: int) -> None:
    """The store stops for a while, and clean sessions need nothing of it. But the end of the
    replaced session has to be durable before the client gets a CONNACK for a new one."""
    stage = Stage()
    stage.connect_durable("s", version=version).subscribe("t", qos=1)
    stage.hold_commits = True
    again = stage.attempt(Connect("s", version, clean_start=True))
    stage.node.store_away(stage.now_s)
    other = stage.attempt(Connect("s", version, clean_start=True))
    new = stage.attempt(Connect("new", version, clean_start=True))
    assert new.expect(Connack).reason_code == 0
    assert (again.take(), other.take()) == ([], [])
    stage.release_commits()
    assert other.expect(Connack).reason_code == 0
    stage.restart()
    assert "s" not in stage.node.registry.sessions


def test_who_waits_for_that_for_too_long_is_told_to_come_back() -> None:
    stage = Stage()
    stage.connect_durable("s")
    stage.hold_commits = True
    client = stage.attempt(Connect("s", MQTT_5, clean_start=True))
    stage.node.store_away(stage.now_s)
    assert client.take() == []
    stage.now_s += stage.node.settings.flow.connect_patience_s + 1
    stage.node.store_away(stage.now_s)
    stage.settle()
    assert client.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
