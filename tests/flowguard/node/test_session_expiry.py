"""Clean start and session expiry: what outlives a connection, and for how long."""

import pytest

from flowguard.codec.packets import Connect, Disconnect
from flowguard.node.connect.ends import ENDS_AFTER_S
from flowguard.types import MQTT_5, MQTT_311, SESSION_NEVER_EXPIRES, ReasonCode
from tests.support.stage import Client, Stage


def resume(stage: Stage, version: int = MQTT_5) -> Client:
    return stage.connect_durable("c", version=version)


def leave_message_behind(stage: Stage, version: int = MQTT_5) -> None:
    """The session of "c" subscribes to "t", goes away and misses one message."""
    client = resume(stage, version)
    client.subscribe("t", qos=1)
    client.close()
    stage.connect("p").publish("t", b"missed", qos=1)


# --- clean start -----------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-5", "v3:MQTT-3.1.2-4", "v3:MQTT-3.1.2-5")
def test_without_clean_start_the_session_goes_on_with_what_it_missed(version: int) -> None:
    stage = Stage()
    leave_message_behind(stage, version)
    again = resume(stage, version)
    assert again.connack.session_present
    assert [message.payload for message in again.publishes()] == [b"missed"]
    stage.connect("p2").publish("t", b"live", qos=1)
    assert [message.payload for message in again.publishes()] == [b"live"]


@pytest.mark.spec("MQTT-3.1.2-6", "v3:MQTT-3.1.2-4")
def test_without_clean_start_and_without_a_session_a_new_one_begins(version: int) -> None:
    stage = Stage()
    client = resume(stage, version)
    assert not client.connack.session_present
    client.subscribe("t", qos=1)
    client.close()
    assert resume(stage, version).connack.session_present


@pytest.mark.spec("MQTT-3.1.2-4", "MQTT-3.1.4-4", "v3:MQTT-3.1.2-6", "v3:MQTT-3.1.4-3")
def test_clean_start_throws_the_old_session_away(version: int) -> None:
    stage = Stage()
    leave_message_behind(stage, version)
    fresh = stage.connect("c", version=version, clean_start=True)
    stage.connect("p2").publish("t", b"live", qos=1)
    assert fresh.publishes() == []


@pytest.mark.spec("MQTT-3.1.2-4", "v3:MQTT-3.1.2-6")
def test_what_clean_start_threw_away_does_not_come_back(version: int) -> None:
    stage = Stage()
    leave_message_behind(stage, version)
    stage.connect("c", version=version, clean_start=True).close()
    again = resume(stage, version)
    assert not again.connack.session_present
    assert again.publishes() == []


@pytest.mark.spec("v3:MQTT-3.1.2-6")
def test_a_clean_session_of_311_ends_with_its_connection() -> None:
    stage = Stage()
    stage.connect("c", version=MQTT_311, clean_start=True).close()
    assert "c" not in stage.node.registry.sessions


@pytest.mark.spec("v3:MQTT-3.1.2-7")
def test_retained_messages_outlive_the_session_of_their_publisher(version: int) -> None:
    stage = Stage()
    publisher = stage.connect("p", version=version, clean_start=True)
    publisher.publish("t", b"kept", retain=True)
    publisher.close()
    subscriber = stage.connect("s")
    subscriber.subscribe("t")
    assert [message.payload for message in subscriber.publishes()] == [b"kept"]


# --- expiry ----------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.2-23")
def test_a_session_lives_as_long_as_its_expiry_interval_says() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=10).close()
    stage.advance(9)
    client = stage.connect("c", clean_start=False, session_expiry_interval=10)
    assert client.connack.session_present
    client.close()
    stage.advance(11)
    client = stage.connect("c", clean_start=False, session_expiry_interval=10)
    assert not client.connack.session_present


@pytest.mark.spec("MQTT-3.1.2-23")
@pytest.mark.parametrize("interval_s", [None, 0])
def test_without_an_expiry_interval_the_session_ends_with_the_connection(
    interval_s: int | None,
) -> None:
    stage = Stage()
    stage.connect("c", clean_start=False, session_expiry_interval=interval_s).close()
    assert not stage.connect("c", clean_start=False).connack.session_present


def test_an_expired_session_misses_messages_and_frees_its_subscriptions() -> None:
    stage = Stage()
    client = stage.connect("c", session_expiry_interval=10)
    client.subscribe("t", qos=1)
    client.close()
    stage.advance(11)
    assert len(stage.node.router.table) == 0
    assert stage.node.counters.clients_expired == 1


def test_the_expiry_runs_from_the_end_of_the_connection_not_from_its_start() -> None:
    stage = Stage()
    client = stage.connect("c", session_expiry_interval=5)
    stage.advance(20)
    client.close()
    stage.advance(4)
    assert stage.connect("c", clean_start=False).connack.session_present


def test_a_client_that_comes_back_stops_the_expiry() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=5).close()
    stage.advance(3)
    stage.connect("c", clean_start=False, session_expiry_interval=5)
    stage.advance(10)
    assert "c" in stage.node.registry.sessions


def test_a_client_that_was_back_for_a_moment_has_its_whole_interval_again() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=5).close()
    for _ in range(3):
        stage.advance(4)
        client = stage.connect("c", clean_start=False, session_expiry_interval=5)
        assert client.connack.session_present
        client.close()
    stage.advance(6)
    assert "c" not in stage.node.registry.sessions


def test_the_new_connection_decides_the_expiry_of_the_resumed_session() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=1_000).close()
    stage.connect("c", clean_start=False).close()
    assert not stage.connect("c", clean_start=False).connack.session_present


def test_a_session_that_never_expires_stays() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=SESSION_NEVER_EXPIRES).close()
    assert stage.node.registry.sessions["c"].ends_at_s is None


def test_the_session_of_a_311_client_is_kept_by_the_maximum_of_the_server() -> None:
    stage = Stage({"session": {"session_expiry_max_s": 10}})
    resume(stage, MQTT_311).close()
    stage.advance(11)
    assert not resume(stage, MQTT_311).connack.session_present


def test_an_interval_above_the_maximum_is_cut_and_told() -> None:
    stage = Stage({"session": {"session_expiry_max_s": 10}})
    client = stage.connect("c", session_expiry_interval=60)
    assert client.connack.properties.session_expiry_interval == 10
    client.close()
    stage.advance(11)
    assert "c" not in stage.node.registry.sessions


def test_an_interval_within_the_maximum_is_granted_without_a_word() -> None:
    stage = Stage({"session": {"session_expiry_max_s": 10}})
    connack = stage.connect("c", session_expiry_interval=10).connack
    assert connack.properties.session_expiry_interval is None


# --- changed at DISCONNECT -------------------------------------------------------------------


def test_disconnect_may_end_the_session_at_once() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=60).disconnect(session_expiry_interval=0)
    assert "c" not in stage.node.registry.sessions
    stage.restart()
    assert "c" not in stage.node.registry.sessions


def test_disconnect_may_lengthen_the_expiry() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=5).disconnect(session_expiry_interval=20)
    stage.advance(15)
    assert "c" in stage.node.registry.sessions
    stage.advance(6)
    assert "c" not in stage.node.registry.sessions


def test_disconnect_cannot_lengthen_the_expiry_beyond_the_maximum() -> None:
    stage = Stage({"session": {"session_expiry_max_s": 10}})
    stage.connect("c", session_expiry_interval=5).disconnect(session_expiry_interval=60)
    stage.advance(11)
    assert "c" not in stage.node.registry.sessions


def test_disconnect_cannot_keep_a_session_that_was_to_end_with_the_connection() -> None:
    stage = Stage()
    client = stage.connect("c")
    client.disconnect(session_expiry_interval=60)
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert "c" not in stage.node.registry.sessions


# --- restarts and interrupted handshakes -----------------------------------------------------


def test_a_restart_keeps_sessions_with_what_they_missed(version: int) -> None:
    stage = Stage()
    leave_message_behind(stage, version)
    stage.restart()
    again = resume(stage, version)
    assert again.connack.session_present
    assert [message.payload for message in again.publishes()] == [b"missed"]


def test_after_a_restart_the_expiry_of_those_who_were_connected_begins() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=10)
    stage.advance(20)
    stage.restart()
    stage.advance(9)
    assert "c" in stage.node.registry.sessions


def test_restarts_do_not_lengthen_the_life_of_a_session_whose_end_is_stored() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=22)
    stage.restart()  # the client was connected: its seconds begin now
    stage.advance(ENDS_AFTER_S + 0.1)
    for _ in range(3):
        stage.advance(4)
        stage.restart()
    stage.advance(0.1)
    assert "c" not in stage.node.registry.sessions


def test_a_client_gone_before_its_connack_leaves_its_old_session_to_expire() -> None:
    stage = Stage()
    stage.connect("c", session_expiry_interval=10).close()
    stage.hold_commits = True
    late = stage.connect("c", clean_start=False, session_expiry_interval=10)
    late.close()
    stage.release_commits()
    assert "c" in stage.node.registry.sessions
    stage.advance(11)
    assert "c" not in stage.node.registry.sessions


def test_a_clean_start_gone_before_its_connack_leaves_nothing(version: int) -> None:
    stage = Stage()
    stage.hold_commits = True
    stage.attempt(Connect("c", version)).close()
    stage.release_commits()
    assert stage.node.registry.sessions == {}
    assert stage.node.guard.gate.in_process == 0
