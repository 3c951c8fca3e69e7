"""Wills: published for each client that leaves without DISCONNECT, once, when due, as an ordinary
message."""

import pytest

from flowguard.codec.packets import Connack, Connect, Disconnect, Will
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_5, Properties, Publish, ReasonCode
from tests.support.readings import payloads
from tests.support.stage import Client, Stage

NOT_NORMAL = [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]


def witness_of(stage: Stage, topic: str = "w") -> Client:
    witness = stage.connect("witness")
    witness.subscribe(topic, qos=2, retain_as_published=True)
    return witness


def delayed(delay_s: int) -> Will:
    return Will("w", b"gone", properties=Properties(will_delay_interval=delay_s))


# --- when it is published --------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-7", "MQTT-3.1.2-8", "v3:MQTT-3.1.2-8")
def test_a_lost_connection_publishes_the_will(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    client = stage.connect("c", version=version, will=Will("w", b"gone"))
    assert payloads(witness) == []
    client.close()
    assert payloads(witness) == [b"gone"]


@pytest.mark.spec("MQTT-3.1.2-8", "v3:MQTT-3.1.2-8")
def test_a_violation_of_the_protocol_publishes_the_will(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    client = stage.connect("c", version=version, will=Will("w", b"gone"))
    client.send_bytes(b"\x00\x00")
    assert payloads(witness) == [b"gone"]


@pytest.mark.spec("MQTT-3.1.2-8", "MQTT-3.1.2-10", "v3:MQTT-3.1.2-8", "v3:MQTT-3.1.2-10")
def test_disconnect_discards_the_will(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect_durable("c", version=version, will=Will("w", b"gone")).disconnect()
    stage.advance(5)
    stage.restart()
    assert payloads(witness) == []
    assert stage.node.counters.wills_published == 0


@pytest.mark.spec("MQTT-3.1.2-8", "MQTT-3.1.2-10")
@pytest.mark.parametrize("reason_code", NOT_NORMAL)
def test_a_disconnect_that_is_not_normal_publishes_the_will(reason_code: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=Will("w", b"gone")).disconnect(reason_code)
    assert payloads(witness) == [b"gone"]


@pytest.mark.spec("v3:MQTT-3.1.2-12")
def test_without_a_will_nothing_is_published(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage, "#")
    stage.connect("c", version=version).close()
    assert payloads(witness) == []


@pytest.mark.spec("MQTT-3.1.2-10", "v3:MQTT-3.1.2-10")
def test_a_will_is_published_once(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect_durable("c", version=version, will=Will("w", b"gone")).close()
    assert payloads(witness) == [b"gone"]
    stage.connect_durable("c", version=version).close()
    stage.connect("c", version=version).close()
    stage.advance(5)
    assert payloads(witness) == []


def test_a_take_over_publishes_the_will_of_the_old_connection(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", version=version, will=Will("w", b"old"))
    stage.connect("c", version=version, will=Will("w", b"new"))
    assert payloads(witness) == [b"old"]


def test_a_client_gone_before_its_connack_has_no_will(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.hold_commits = True
    stage.attempt(Connect("c", version, will=Will("w", b"gone"))).close()
    stage.release_commits()
    assert payloads(witness) == []


# --- how it is published ---------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-14", "v3:MQTT-3.1.2-16")
def test_a_will_without_retain_is_not_retained(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", version=version, will=Will("w", b"gone")).close()
    (message,) = witness.publishes()
    assert not message.retain
    late = stage.connect("late")
    late.subscribe("w")
    assert payloads(late) == []


@pytest.mark.spec("MQTT-3.1.2-15", "v3:MQTT-3.1.2-17")
def test_a_will_with_retain_is_retained(version: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", version=version, will=Will("w", b"gone", retain=True)).close()
    (message,) = witness.publishes()
    assert message.retain
    late = stage.connect("late")
    late.subscribe("w")
    assert payloads(late) == [b"gone"]


@pytest.mark.spec("v3:MQTT-3.1.2-9")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_has_the_qos_its_connect_asked_for(version: int, qos: int) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", version=version, will=Will("w", b"gone", qos)).close()
    assert [message.qos for message in witness.publishes()] == [qos]


def test_a_will_of_qos_1_waits_for_subscribers_that_are_away(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect_durable("s", version=version)
    subscriber.subscribe("w", qos=1)
    subscriber.close()
    stage.connect("c", version=version, will=Will("w", b"gone", 1)).close()
    assert payloads(stage.connect_durable("s", version=version)) == [b"gone"]


@pytest.mark.spec("MQTT-3.1.3-10")
def test_properties_of_a_will_are_published_with_user_properties_in_order() -> None:
    stage = Stage()
    witness = witness_of(stage)
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=60,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"id",
        user_properties=(("b", "1"), ("a", "2"), ("b", "3")),
    )
    stage.connect("c", will=Will("w", b"gone", properties=properties)).close()
    (message,) = witness.publishes()
    assert message.properties == properties


# --- will delay ------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-8")
def test_a_delayed_will_waits_for_its_delay() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(5), session_expiry_interval=60).close()
    stage.advance(4.9)
    assert payloads(witness) == []
    stage.advance(0.3)
    assert payloads(witness) == [b"gone"]


@pytest.mark.spec("MQTT-3.1.3-9", "MQTT-3.1.2-8")
@pytest.mark.parametrize("clean_start", [False, True], ids=["with its session", "without"])
def test_a_client_that_is_back_within_the_delay_takes_its_will_with_it(clean_start: bool) -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(60), session_expiry_interval=90).close()
    stage.advance(30)
    again = stage.connect("c", clean_start=clean_start)
    stage.advance(120)
    assert payloads(witness) == []
    again.close()
    stage.advance(120)
    assert payloads(witness) == []


@pytest.mark.spec("MQTT-3.1.3-9")
def test_the_delay_begins_anew_with_each_end_of_a_connection() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(5), session_expiry_interval=60).close()
    stage.advance(3)
    stage.connect("c", clean_start=False, will=delayed(5), session_expiry_interval=60).close()
    stage.advance(4)
    assert payloads(witness) == []
    stage.advance(2)
    assert payloads(witness) == [b"gone"]


@pytest.mark.spec("MQTT-3.1.3-9")
def test_a_take_over_within_the_delay_keeps_the_will_from_being_sent() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(5), session_expiry_interval=60)
    stage.connect("c", clean_start=False, session_expiry_interval=60)
    stage.advance(10)
    assert payloads(witness) == []


@pytest.mark.spec("MQTT-3.1.2-8")
def test_the_end_of_the_session_does_not_wait_for_the_delay() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(60), session_expiry_interval=5).close()
    stage.advance(4)
    assert payloads(witness) == []
    stage.advance(2)
    assert payloads(witness) == [b"gone"]
    stage.advance(60)
    assert payloads(witness) == []


@pytest.mark.spec("MQTT-3.1.2-8")
def test_a_clean_start_after_the_delay_comes_too_late() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(60), session_expiry_interval=90).close()
    stage.advance(61)
    stage.connect("c", clean_start=True)
    assert payloads(witness) == [b"gone"]


def test_without_a_session_to_wait_in_a_delayed_will_is_due_at_once() -> None:
    stage = Stage()
    witness = witness_of(stage)
    stage.connect("c", will=delayed(60)).close()
    assert payloads(witness) == [b"gone"]


def test_a_disconnect_with_will_and_session_end_publishes_it_at_once() -> None:
    stage = Stage()
    witness = witness_of(stage)
    client = stage.connect("c", will=delayed(60), session_expiry_interval=60)
    client.disconnect(ReasonCode.DISCONNECT_WITH_WILL, session_expiry_interval=0)
    assert payloads(witness) == [b"gone"]


def test_the_expiry_of_a_will_counts_from_its_publication() -> None:
    stage = Stage()
    witness = witness_of(stage)
    properties = Properties(will_delay_interval=20, message_expiry_interval=10)
    will = Will("w", b"gone", properties=properties)
    stage.connect("c", will=will, session_expiry_interval=60).close()
    stage.advance(21)
    (message,) = witness.publishes()
    assert message.properties == Properties(message_expiry_interval=10)


# --- restart ---------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-7")
def test_a_restart_publishes_the_wills_of_those_it_cut_off_once(version: int) -> None:
    stage = Stage()
    late = stage.connect_durable("z-subscriber", version=version)
    late.subscribe("w", qos=1)
    stage.connect_durable("a-client", version=version, will=Will("w", b"gone", 1))
    stage.restart()
    stage.settle()
    stage.restart()
    assert payloads(stage.connect_durable("z-subscriber", version=version)) == [b"gone"]


# --- wills that are not published ------------------------------------------------------------


class Guard:
    """Forbids to publish to "forbidden"."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return topic != "forbidden"

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


@pytest.mark.parametrize(
    ("topic", "reason_code"),
    [
        ("forbidden", ReasonCode.NOT_AUTHORIZED),
        ("$SYS/broker/version", ReasonCode.NOT_AUTHORIZED),
        ("a/" * 300, ReasonCode.TOPIC_NAME_INVALID),
    ],
)
def test_a_will_that_its_client_could_not_publish_is_refused(
    topic: str, reason_code: ReasonCode
) -> None:
    stage = Stage(hooks=Hooks(authorizer=Guard()))
    client = stage.attempt(Connect("c", will=Will(topic, b"x", retain=True)))
    assert client.expect(Connack).reason_code == reason_code
    assert client.is_closed
    assert len(stage.node.router.retained) == 0


def test_a_refused_will_leaves_the_client_of_that_name_connected() -> None:
    stage = Stage()
    client = stage.connect("c")
    stage.attempt(Connect("c", MQTT_5, will=Will("$SYS/x", b"x")))
    assert not client.is_closed


def test_a_session_expiry_that_violates_the_protocol_publishes_the_will() -> None:
    stage = Stage()
    witness = witness_of(stage)
    client = stage.connect("c", will=Will("w", b"gone"))
    client.send(Disconnect(0, Properties(session_expiry_interval=5)))
    assert [type(message) for message in witness.publishes()] == [Publish]
