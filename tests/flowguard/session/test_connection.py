"""A connection by itself: `transitions.CONNECTION`, and what goes both ways while connected."""

from flowguard.codec.packets import (
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Suback,
    Subscribe,
    Will,
)
from flowguard.session.host import IN_PROCESS
from flowguard.session.states import State
from flowguard.types import MQTT_311, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.session.alone import NOW_S, Alone


def kinds(packets: list[Packet]) -> list[str]:
    return [type(packet).__name__ for packet in packets]


def test_a_connect_is_accepted_and_a_disconnect_ends_it_without_will() -> None:
    alone = Alone()
    connection = alone.open()
    assert connection.state is State.CONNECTED
    assert kinds(alone.take()) == ["Connack"]
    alone.send(Disconnect())
    assert connection.state is State.ENDED
    assert alone.events == ["ended"]
    assert alone.session.outbound is None


def test_whoever_leaves_without_a_word_leaves_a_will() -> None:
    alone = Alone()
    connection = alone.open()
    connection.receive_eof(NOW_S)
    assert connection.ended
    assert alone.events == ["ended with will"]


def test_what_is_no_connect_ends_the_connection_before_it_was_one() -> None:
    alone = Alone()
    connection = alone.open()
    alone.take()
    alone.send(Pingreq(), Subscribe(1, (("a", SubscriptionOptions(qos=1)),)))
    assert kinds(alone.take()) == ["Pingresp", "Suback"]
    connection.receive_data(b"\xff\xff", NOW_S)
    assert connection.ended
    assert kinds(alone.take()) == ["Disconnect"]
    assert alone.events == ["broken MALFORMED_PACKET", "ended with will"]


def test_a_connect_that_asks_for_too_much_is_refused() -> None:
    alone = Alone(retain_available=False)
    connection = alone.open(will=Will("t", b"x", 0, True))
    (connack,) = alone.take()
    assert isinstance(connack, Connack)
    assert connack.reason_code == ReasonCode.RETAIN_NOT_SUPPORTED
    assert connection.state is State.ENDED
    assert alone.events == ["refused RETAIN_NOT_SUPPORTED", "handshake ended"]


def test_another_connection_takes_the_session_over() -> None:
    alone = Alone(expiry_s=60)
    first = alone.open()
    second = alone.open()
    assert first.ended
    assert alone.session.outbound is second.outbound
    assert alone.events == ["ended with will"]


def test_a_ping_is_answered_while_the_window_is_full() -> None:
    alone = Alone()
    alone.node.window.resize(1)
    alone.open()
    alone.take()
    alone.routes.answers = [IN_PROCESS, IN_PROCESS]
    alone.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2), Pingreq())
    assert len(alone.routes.messages) == 1
    assert alone.take() == [Pingresp()]
    assert alone.node.paused_count == 1
    alone.commits.commit()
    alone.run()
    assert len(alone.routes.messages) == 2
    assert alone.take() == [Puback(1)]
    alone.commits.commit()
    assert alone.take() == [Puback(2)]


def test_a_client_before_5_0_is_served_in_its_version() -> None:
    alone = Alone(expiry_s=60)
    alone.open(version=MQTT_311)
    assert kinds(alone.take()) == ["Connack"]
    alone.offer(1)
    (message,) = alone.take()
    assert isinstance(message, Publish)
    alone.send(Puback(message.packet_id))
    assert not alone.session.inflight.messages
    assert not isinstance(message, Suback)
