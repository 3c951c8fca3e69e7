"""A message that is never acknowledged keeps its packet identifier, and holds up no other one."""

import pytest

from flowguard.codec.packets import Puback
from flowguard.records import QOS_1_IDS
from flowguard.types import Publish
from tests.flowguard.session.sessions import Sessions

STUCK = 3
MORE = 20


def almost_a_lap(sessions: Sessions, ahead: int = 1) -> None:
    """As many messages as make one of the next want the identifier of the first that is stuck."""
    sessions.sessions["s"].next_pos += QOS_1_IDS - STUCK - ahead


def publish(sessions: Sessions, numbers: range, qos: int, *, together: bool) -> None:
    publisher = sessions.connect("p")
    packets = [Publish("a", b"%d" % n, qos, packet_id=n + 1) for n in numbers]
    if together:
        publisher.send(*packets)
    else:
        for packet in packets:
            publisher.send(packet)


@pytest.mark.spec("MQTT-2.2.1-4", "v3:MQTT-2.3.1-4")
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("ahead", [1, MORE // 2])
def test_unacknowledged_messages_do_not_stop_those_of_the_next_lap(
    version: int, durable: bool, qos: int, together: bool, ahead: int
) -> None:
    sessions = Sessions()
    connect = sessions.connect_durable if durable else sessions.connect
    client = connect("s", version=version)
    client.subscribe("a", qos=qos)
    publish(sessions, range(STUCK), qos, together=together)
    stuck = client.publishes(acknowledge=False)
    assert len(stuck) == STUCK
    almost_a_lap(sessions, ahead)
    for lap in range(3):
        publish(sessions, range(MORE), qos, together=together)
        found = client.publishes(acknowledge=lap > 0)
        assert [int(message.payload) for message in found] == list(range(MORE))
        used = {message.packet_id for message in stuck}
        assert not used & {message.packet_id for message in found}
        if lap == 0 and qos == 1:
            client.send(*(Puback(message.packet_id) for message in found))
        almost_a_lap(sessions, ahead)
    sessions.check()
    sessions.end_all()
