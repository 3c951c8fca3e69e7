"""CONNACK: Session Present, the server's limits, and what a small client does not get."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp, Will
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_311, Properties, ReasonCode
from tests.support.authentication import SameVerdict, TwoSteps
from tests.support.stage import Stage

# --- Session Present -------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.2.2-2", "v3:MQTT-3.2.2-1")
def test_a_clean_start_is_told_of_no_session_even_where_there_was_one(version: int) -> None:
    stage = Stage()
    stage.connect_durable("c", version=version).close()
    connack = stage.connect("c", version=version, clean_start=True).connack
    assert (connack.session_present, connack.reason_code) == (False, ReasonCode.SUCCESS)


@pytest.mark.spec("MQTT-3.2.2-3", "v3:MQTT-3.2.2-2", "v3:MQTT-3.2.2-3")
def test_session_present_says_whether_there_was_a_session_to_resume(version: int) -> None:
    stage = Stage()
    first = stage.connect_durable("c", version=version)
    first.close()
    again = stage.connect_durable("c", version=version)
    assert (first.connack.session_present, again.connack.session_present) == (False, True)
    assert first.connack.reason_code == again.connack.reason_code == ReasonCode.SUCCESS


@pytest.mark.spec("MQTT-3.2.2-1", "MQTT-3.2.2-6", "v3:MQTT-3.2.2-4")
def test_a_refusal_says_that_no_session_is_present_although_there_is(version: int) -> None:
    hooks = Hooks()
    stage = Stage(hooks=hooks)
    stage.connect_durable("c", version=version).close()
    hooks.authenticator = SameVerdict(ReasonCode.NOT_AUTHORIZED)
    client = stage.attempt(Connect("c", version, clean_start=False))
    assert client.raw[2] == 0
    assert client.raw[3] != 0


# --- limits ----------------------------------------------------------------------------------


def test_connack_announces_the_limits_of_the_server() -> None:
    stage = Stage(
        {
            "session": {
                "receive_maximum": 7,
                "packet_size_max": 2_000,
                "topic_alias_maximum": 3,
            }
        }
    )
    properties = stage.connect("c").connack.properties
    assert properties.receive_maximum == 7
    assert properties.maximum_packet_size == 2_000
    assert properties.topic_alias_maximum == 3


def test_connack_leaves_out_what_is_the_default_of_the_standard() -> None:
    properties = Stage({"session": {"topic_alias_maximum": 0}}).connect("c").connack.properties
    assert properties.maximum_qos is None
    assert properties.retain_available is None
    assert properties.topic_alias_maximum is None
    assert properties.session_expiry_interval is None
    assert properties.server_keep_alive is None
    assert properties.assigned_client_identifier is None


@pytest.mark.spec("MQTT-3.2.2-9")
@pytest.mark.parametrize("maximum", [0, 1])
def test_a_maximum_qos_below_2_is_announced(maximum: int) -> None:
    stage = Stage({"session": {"maximum_qos": maximum}})
    assert stage.connect("c").connack.properties.maximum_qos == maximum


@pytest.mark.spec("MQTT-3.2.2-10")
@pytest.mark.parametrize("maximum", [0, 1])
def test_subscriptions_above_the_maximum_qos_are_granted_the_maximum(
    version: int, maximum: int
) -> None:
    stage = Stage({"session": {"maximum_qos": maximum}})
    assert stage.connect("c", version=version).subscribe("t", qos=2).reason_codes == (maximum,)


@pytest.mark.spec("MQTT-3.2.2-11")
@pytest.mark.parametrize(("maximum", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_a_publish_above_the_maximum_qos_ends_the_connection(maximum: int, qos: int) -> None:
    client = Stage({"session": {"maximum_qos": maximum}}).connect("c")
    client.publish("t", qos=qos)
    assert client.expect(Disconnect).reason_code == ReasonCode.QOS_NOT_SUPPORTED
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-12")
@pytest.mark.parametrize(("maximum", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_a_will_above_the_maximum_qos_is_refused(maximum: int, qos: int) -> None:
    stage = Stage({"session": {"maximum_qos": maximum}})
    client = stage.attempt(Connect("c", will=Will("w", b"", qos)))
    assert client.expect(Connack).reason_code == ReasonCode.QOS_NOT_SUPPORTED
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-13")
def test_a_retained_will_is_refused_where_nothing_is_retained() -> None:
    stage = Stage({"session": {"retain_available": False}})
    client = stage.attempt(Connect("c", will=Will("w", b"x", retain=True)))
    assert client.expect(Connack).reason_code == ReasonCode.RETAIN_NOT_SUPPORTED
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-14")
def test_a_retained_publish_ends_the_connection_where_nothing_is_retained() -> None:
    client = Stage({"session": {"retain_available": False}}).connect("c")
    assert client.connack.properties.retain_available == 0
    client.publish("t", b"x", retain=True)
    assert client.expect(Disconnect).reason_code == ReasonCode.RETAIN_NOT_SUPPORTED
    assert client.is_closed


@pytest.mark.spec("MQTT-3.2.2-15")
def test_a_packet_may_be_as_large_as_the_server_said_and_no_larger() -> None:
    stage = Stage({"session": {"packet_size_max": 2_000}})
    client = stage.connect("c")
    limit = client.connack.properties.maximum_packet_size
    assert limit is not None
    overhead = 1 + 2 + 2 + 1 + 1  # fixed header of two length bytes, topic "t", no properties
    client.publish("t", bytes(limit - overhead))
    assert not client.is_closed
    client.publish("t", bytes(limit - overhead + 1))
    assert client.expect(Disconnect).reason_code == ReasonCode.PACKET_TOO_LARGE
    assert client.is_closed


def test_a_packet_too_large_is_refused_before_its_body_arrives(version: int) -> None:
    stage = Stage({"session": {"packet_size_max": 2_000}})
    client = stage.connect("c", version=version)
    client.send_bytes(b"\x30\xff\xff\x7f")
    assert client.is_closed


# --- small clients ---------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.2.2-19", "MQTT-3.2.2-20")
@pytest.mark.parametrize(("limit", "expects_reason_string"), [(100, True), (20, False)])
def test_a_refusal_leaves_its_reason_string_out_where_it_would_be_too_large(
    limit: int, expects_reason_string: bool
) -> None:
    stage = Stage(hooks=Hooks(methods={"m": TwoSteps}))
    properties = Properties(authentication_method="m", maximum_packet_size=limit)
    client = stage.attempt(Connect("c", properties=properties))
    client.take()
    client.send(Pingreq())
    connack = client.expect(Connack)
    assert len(encode(connack, 5)) <= limit
    assert bool(connack.properties.reason_string) is expects_reason_string


@pytest.mark.spec("MQTT-3.1.2-24")
def test_a_client_too_small_for_connack_is_closed_and_sent_nothing() -> None:
    stage = Stage()
    will = Will("w", b"lost")
    witness = stage.connect("witness")
    witness.subscribe("w")
    limits = Properties(maximum_packet_size=4, session_expiry_interval=60)
    client = stage.attempt(Connect("c", will=will, properties=limits))
    assert client.is_closed
    assert not client.raw
    assert witness.publishes() == []


@pytest.mark.spec("MQTT-3.1.2-28")
@pytest.mark.parametrize("asked", [None, 0, 1])
def test_no_response_information_is_returned(asked: int | None) -> None:
    connack = Stage().connect("c", request_response_information=asked).connack
    assert connack.properties.response_information is None


def test_connack_of_311_is_four_bytes() -> None:
    assert Stage().connect("", version=MQTT_311).raw == b"\x20\x02\x00\x00"


# --- the exchange of an authentication method ends in CONNACK --------------------------------


def test_connack_repeats_method_and_data_of_the_authentication() -> None:
    stage = Stage(hooks=Hooks(methods={"m": TwoSteps}))
    client = stage.attempt(Connect("c", properties=Properties(authentication_method="m")))
    assert client.expect(Auth).properties.authentication_data == b"challenge"
    answer = Properties(authentication_method="m", authentication_data=b"response")
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, answer))
    properties = client.expect(Connack).properties
    assert (properties.authentication_method, properties.authentication_data) == ("m", b"welcome")
    client.send(Pingreq())
    client.expect(Pingresp)
