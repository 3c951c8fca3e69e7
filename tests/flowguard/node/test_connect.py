"""CONNECT: what opens a conversation, what is refused, and that nothing happens after a refusal."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect, Pingreq, Pingresp
from flowguard.node.connect.authentication import Hooks
from flowguard.node.upkeep.outage import LATE_S
from flowguard.types import MQTT_5, MQTT_31, MQTT_311, Properties, Publish, ReasonCode
from tests.support.authentication import SameVerdict, TwoSteps
from tests.support.stage import Stage


def connect_bytes(name: bytes, level: int, flags: int = 0x02) -> bytes:
    """A CONNECT with client id "c" and any name, level and flags."""
    body = len(name).to_bytes(2, "big") + name + bytes((level, flags, 0, 0))
    body += (b"\0" if level >= 5 else b"") + b"\0\1c"
    return bytes((0x10, len(body))) + body


# --- first packet ----------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.0-1", "v3:MQTT-3.1.0-1")
def test_a_client_that_does_not_start_with_connect_is_closed_without_a_word(version: int) -> None:
    client = Stage().open(version)
    client.send(Pingreq())
    assert client.is_closed
    assert not client.raw


@pytest.mark.spec("MQTT-3.1.0-2", "MQTT-3.2.0-2")
def test_a_second_connect_is_a_protocol_error_and_gets_no_second_connack() -> None:
    client = Stage().connect("c")
    client.send(Connect("c"))
    assert client.is_closed
    (answer,) = client.take()
    assert isinstance(answer, Disconnect)
    assert answer.reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.spec("v3:MQTT-3.1.0-2")
def test_a_second_connect_of_311_closes_silently() -> None:
    client = Stage().connect("c", version=MQTT_311)
    client.send(Connect("c", MQTT_311))
    assert client.is_closed
    assert client.take() == []


# --- protocol name, level, flags -------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-1", "v3:MQTT-3.1.2-1")
@pytest.mark.parametrize("name", [b"MQTt", b"", b"AMQP"])
def test_another_protocol_is_not_served(name: bytes) -> None:
    client = Stage().open()
    client.send_bytes(connect_bytes(name, 5))
    assert client.is_closed
    assert client.expect(Connack).reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.spec("MQTT-3.1.2-2")
def test_a_level_of_the_future_is_refused_in_the_words_of_5() -> None:
    client = Stage().open()
    client.send_bytes(connect_bytes(b"MQTT", 6))
    assert client.is_closed
    assert client.expect(Connack).reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.spec("v3:MQTT-3.1.2-2")
def test_a_level_below_4_is_refused_in_the_words_of_311() -> None:
    client = Stage().open(MQTT_311)
    client.send_bytes(connect_bytes(b"MQTT", 2))
    assert client.is_closed
    assert client.raw == b"\x20\x02\x00\x01"


def test_mqisdp_with_level_3_is_served() -> None:
    client = Stage().connect("c", version=MQTT_31)
    client.send(Pingreq())
    client.expect(Pingresp)


@pytest.mark.spec("MQTT-3.1.2-3", "MQTT-3.1.4-1")
def test_a_reserved_connect_flag_is_malformed() -> None:
    client = Stage().open()
    client.send_bytes(connect_bytes(b"MQTT", 5, flags=0x03))
    assert client.is_closed
    assert client.expect(Connack).reason_code == ReasonCode.MALFORMED_PACKET


@pytest.mark.spec("v3:MQTT-3.1.2-3", "v3:MQTT-3.1.4-1", "v3:MQTT-3.2.2-6")
def test_a_malformed_connect_of_311_closes_without_connack() -> None:
    client = Stage().open(MQTT_311)
    client.send_bytes(connect_bytes(b"MQTT", 4, flags=0x03))
    assert client.is_closed
    assert not client.raw


# --- acceptance ------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.4-5", "v3:MQTT-3.1.4-4")
def test_an_accepted_connect_is_answered_with_success(version: int) -> None:
    client = Stage().connect("c", version=version)
    assert client.connack.reason_code == ReasonCode.SUCCESS
    assert not client.is_closed


def test_a_connect_that_arrives_byte_by_byte_is_accepted(version: int) -> None:
    client = Stage().open(version)
    for byte in encode(Connect("c", version), version):
        client.send_bytes(bytes((byte,)))
    assert client.expect(Connack).reason_code == ReasonCode.SUCCESS


def test_packets_sent_before_connack_are_processed_after_it(version: int) -> None:
    stage = Stage()
    stage.hold_commits = True
    client = stage.open(version)
    client.send(Connect("c", version), Pingreq())
    assert not client.raw
    stage.release_commits()
    assert [type(packet) for packet in client.take()] == [Connack, Pingresp]


@pytest.mark.spec("MQTT-3.2.0-1", "v3:MQTT-3.2.0-1")
def test_connack_comes_before_everything_a_resumed_session_waits_for(version: int) -> None:
    stage = Stage()
    first = stage.connect_durable("c", version=version)
    first.subscribe("t", qos=1)
    first.close()
    stage.connect("p").publish("t", b"x", qos=1)
    again = stage.open(version)
    expiry = Properties(session_expiry_interval=60)
    again.send(
        Connect("c", version, False, properties=expiry)
        if version == MQTT_5
        else Connect("c", version, False)
    )
    assert [type(packet) for packet in again.take()] == [Connack, Publish]


def test_no_connack_leaves_before_the_session_is_durable(version: int) -> None:
    stage = Stage()
    stage.hold_commits = True
    client = stage.attempt(Connect("c", version, clean_start=version == MQTT_5))
    assert not client.raw
    stage.release_commits()
    client.expect(Connack)


def test_clients_that_give_up_before_their_commit_keep_their_slots_until_it() -> None:
    """Else a crowd that gives up and returns fills the journal of a slow store without end."""
    stage = Stage({"flow": {"connects_in_process_max": 4}})
    kept = Properties(session_expiry_interval=60)
    stage.hold_commits = True
    crowd = [stage.attempt(Connect(f"c{number}", properties=kept)) for number in range(8)]
    gate, depth = stage.node.guard.gate, stage.node.journal.depth
    assert (gate.in_process, gate.buffered) == (4, 4)
    for client in crowd:
        client.close()
    again = stage.attempt(Connect("again", properties=kept))
    assert (gate.in_process, gate.buffered) == (4, 1)
    stage.release_commits()
    assert again.expect(Connack).reason_code == ReasonCode.SUCCESS
    assert (gate.in_process, gate.buffered) == (0, 0)
    assert stage.node.journal.depth < depth


def test_clients_that_need_no_commit_get_the_slots_of_those_that_gave_up_in_an_outage() -> None:
    stage = Stage({"flow": {"connects_in_process_max": 1}})
    stage.hold_commits = True
    stage.attempt(Connect("kept", properties=Properties(session_expiry_interval=60))).close()
    client = stage.attempt(Connect("clean"))
    stage.advance(LATE_S - 0.5)
    assert not client.raw
    stage.advance(1.0)
    assert client.expect(Connack).reason_code == ReasonCode.SUCCESS


def test_a_crowd_that_returns_in_an_outage_does_not_fill_the_journal() -> None:
    stage = Stage()
    kept = Properties(session_expiry_interval=60)
    stage.hold_commits = True
    stage.attempt(Connect("c", properties=kept)).close()
    stage.advance(LATE_S + 0.5)
    depth = stage.node.journal.depth
    again = stage.attempt(Connect("c", properties=kept))
    assert again.expect(Connack).reason_code == ReasonCode.SERVER_UNAVAILABLE
    assert stage.node.journal.depth == depth
    stage.release_commits()
    assert stage.connect("c", session_expiry_interval=60)


def test_clients_that_gave_up_before_their_commit_do_not_count_against_connections_max() -> None:
    stage = Stage({"node": {"connections_max": 1}})
    kept = Properties(session_expiry_interval=60)
    stage.hold_commits = True
    stage.attempt(Connect("c", properties=kept)).close()
    again = stage.attempt(Connect("c", properties=kept))
    assert not again.is_closed
    stage.release_commits()
    assert again.expect(Connack).reason_code == ReasonCode.SUCCESS


# --- refusal ---------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.4-2", "MQTT-3.2.2-7", "v3:MQTT-3.2.2-5")
@pytest.mark.parametrize(
    "reason", [ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED]
)
def test_a_client_that_fails_authentication_is_told_and_closed(
    version: int, reason: ReasonCode
) -> None:
    stage = Stage(hooks=Hooks(authenticator=SameVerdict(reason)))
    client = stage.attempt(Connect("c", version, username="u", password=b"wrong"))
    assert client.expect(Connack).reason_code == reason
    assert client.is_closed


@pytest.mark.spec("MQTT-3.1.4-6", "v3:MQTT-3.1.4-5")
def test_nothing_that_follows_a_refused_connect_is_processed(version: int) -> None:
    hooks = Hooks()
    stage = Stage(hooks=hooks)
    subscriber = stage.connect("s")
    subscriber.subscribe("t")
    hooks.authenticator = SameVerdict(ReasonCode.NOT_AUTHORIZED)
    client = stage.open(version)
    client.send(Connect("c", version), Publish("t", b"x"), Pingreq())
    client.publish("t", b"y")
    assert [type(packet) for packet in client.take()] == [Connack]
    assert subscriber.publishes() == []


def test_a_refused_connect_leaves_the_client_of_that_name_alone(version: int) -> None:
    hooks = Hooks()
    stage = Stage(hooks=hooks)
    client = stage.connect("c", version=version)
    hooks.authenticator = SameVerdict(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
    stage.attempt(Connect("c", version))
    client.send(Pingreq())
    client.expect(Pingresp)


# --- enhanced authentication before CONNACK --------------------------------------------------


def test_an_unknown_authentication_method_is_refused() -> None:
    client = Stage().attempt(Connect("c", properties=Properties(authentication_method="m")))
    assert client.expect(Connack).reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
    assert client.is_closed


@pytest.mark.spec("MQTT-3.1.2-30", "MQTT-3.2.0-1")
def test_only_auth_and_disconnect_may_come_between_connect_and_connack() -> None:
    stage = Stage(hooks=Hooks(methods={"m": TwoSteps}))
    client = stage.attempt(Connect("c", properties=Properties(authentication_method="m")))
    assert [type(packet) for packet in client.take()] == [Auth]
    client.send(Pingreq())
    assert client.expect(Connack).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


def test_an_authentication_that_stops_half_way_is_closed_in_time() -> None:
    stage = Stage({"flow": {"connect_timeout_s": 5}}, hooks=Hooks(methods={"m": TwoSteps}))
    client = stage.attempt(Connect("c", properties=Properties(authentication_method="m")))
    stage.advance(4)
    assert not client.is_closed
    stage.advance(3)
    assert client.is_closed


def test_time_in_the_connect_buffer_does_not_count_for_an_authentication() -> None:
    limits = {"connect_timeout_s": 5, "connects_in_process_max": 1, "connect_patience_s": 60}
    stage = Stage({"flow": limits}, hooks=Hooks(methods={"m": TwoSteps}))
    stage.hold_commits = True
    kept = Properties(session_expiry_interval=60)
    stage.attempt(Connect("first", properties=kept))
    client = stage.attempt(Connect("c", properties=Properties(authentication_method="m")))
    stage.advance(10)
    stage.release_commits()
    client.expect(Auth)
    stage.advance(4)
    assert not client.is_closed
    stage.advance(3)
    assert client.is_closed
