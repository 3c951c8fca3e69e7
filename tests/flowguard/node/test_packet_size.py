"""Maximum Packet Size of the client: nothing larger is sent, and a drop disturbs no other
client."""

import pytest

from flowguard.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.config import PACKET_SIZE_MAX
from flowguard.flow import Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.types import Properties, Publish, ReasonCode
from tests.support.stage import Client, Stage


@pytest.mark.slow
@pytest.mark.parametrize(
    ("qos", "client_takes"), [(0, {}), (1, {"maximum_packet_size": 0xFFFF_FFFF})]
)
def test_a_message_that_grows_beyond_what_mqtt_can_express_is_dropped(
    qos: int, client_takes: dict[str, int]
) -> None:
    """3.1.1 brings the largest packet there is; 5.0 needs a byte more for the same message."""
    limits = {"packet_size_max": PACKET_SIZE_MAX, "queue_bytes_max": PACKET_SIZE_MAX}
    stage = Stage(
        {
            "flow": {"memory_max_bytes": 2**33},
            "session": limits,
            "node": {"inflight_bytes_max": 2**30, "input_bytes_max": PACKET_SIZE_MAX},
        }
    )
    subscriber = stage.connect("s", **client_takes)
    subscriber.subscribe("t", qos=qos)
    largest = PACKET_SIZE_MAX - 5 - len(b"\0\1t") - (2 if qos else 0)
    stage.node.router.publish_own(Publish("t", bytes(largest), qos), stage.now_s)
    stage.settle()
    stage.node.router.publish_own(Publish("t", b"small", qos), stage.now_s)
    stage.settle()
    assert [message.payload for message in subscriber.publishes()] == [b"small"]
    assert stage.node.counters.dropped == {Reason.PACKET_TOO_LARGE: 1}


@pytest.mark.spec("MQTT-3.1.2-24")
def test_a_retained_message_too_large_is_not_sent() -> None:
    stage = Stage()
    stage.connect("p").publish("t", bytes(100), retain=True)
    subscriber = stage.connect("s", maximum_packet_size=60)
    subscriber.subscribe("t")
    assert subscriber.publishes() == []
    subscriber.send(Pingreq())
    subscriber.expect(Pingresp)


# --- answers without ornaments ---------------------------------------------------------------


class NobodyMay:
    """Refuses every publish."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return False

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


SMALLEST_ANSWER_BYTES = 5
"""Fixed header, packet identifier, reason code."""


def small_client() -> tuple[Stage, Client]:
    """A client that takes nothing larger than such an answer, once it is connected."""
    stage = Stage(hooks=Hooks(authorizer=NobodyMay()))
    client = stage.connect("c", maximum_packet_size=60)
    client.connection.outbound.limit_packets(Properties(maximum_packet_size=SMALLEST_ANSWER_BYTES))
    return stage, client


@pytest.mark.spec("MQTT-3.4.2-1", "MQTT-3.4.2-2", "MQTT-3.4.2-3")
def test_a_refusing_puback_fits_the_smallest_client() -> None:
    _, client = small_client()
    packet_id = client.publish("t", qos=1)
    assert client.take() == [Puback(packet_id, ReasonCode.NOT_AUTHORIZED)]


@pytest.mark.spec("MQTT-3.5.2-1", "MQTT-3.5.2-2", "MQTT-3.5.2-3")
def test_a_refusing_pubrec_fits_the_smallest_client() -> None:
    _, client = small_client()
    packet_id = client.publish("t", qos=2)
    assert client.take() == [Pubrec(packet_id, ReasonCode.NOT_AUTHORIZED)]


@pytest.mark.spec("MQTT-3.6.2-1", "MQTT-3.6.2-2", "MQTT-3.6.2-3")
def test_a_pubrel_for_an_unknown_identifier_fits_the_smallest_client() -> None:
    _, client = small_client()
    client.send(Pubrec(7))
    assert client.take() == [Pubrel(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


@pytest.mark.spec("MQTT-3.7.2-1", "MQTT-3.7.2-2", "MQTT-3.7.2-3")
def test_a_pubcomp_for_an_unknown_identifier_fits_the_smallest_client() -> None:
    _, client = small_client()
    client.send(Pubrel(7))
    assert client.take() == [Pubcomp(7, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


@pytest.mark.spec("MQTT-3.1.2-24")
def test_a_disconnect_leaves_its_reason_string_out_where_it_would_be_too_large() -> None:
    _, client = small_client()
    client.send_bytes(b"\x00\x00")
    (packet,) = client.take()
    assert isinstance(packet, Disconnect)
    assert packet.reason_code == ReasonCode.MALFORMED_PACKET
    assert packet.properties.reason_string is None
