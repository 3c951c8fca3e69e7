"""Client identifiers: the key to the session, assigned where empty, one connection each."""

import pytest

from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq, Pingresp
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_5, MQTT_31, MQTT_311, ReasonCode
from tests.support.authentication import SameVerdict
from tests.support.stage import Stage

ALL_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


# --- the key to the session ------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.3-2", "v3:MQTT-3.1.3-2")
def test_the_client_id_alone_finds_the_session(version: int) -> None:
    stage = Stage()
    stage.connect_durable("one", version=version).close()
    assert not stage.connect_durable("ONE", version=version).connack.session_present
    assert stage.connect_durable("one", version=version).connack.session_present


def test_both_versions_share_one_space_of_client_ids() -> None:
    stage = Stage()
    stage.connect_durable("c", version=MQTT_311).close()
    assert stage.connect_durable("c", version=MQTT_5).connack.session_present


@pytest.mark.spec("MQTT-3.1.3-5", "v3:MQTT-3.1.3-5")
@pytest.mark.parametrize("client_id", [*ALL_LETTERS[::7], ALL_LETTERS[:23], ALL_LETTERS[-23:]])
def test_one_to_23_digits_and_letters_are_accepted(version: int, client_id: str) -> None:
    assert Stage().connect(client_id, version=version).connack.reason_code == 0


@pytest.mark.parametrize("client_id", ["a b/+#", "ключ", "x" * 65_535])
def test_longer_and_stranger_client_ids_are_accepted_as_well(version: int, client_id: str) -> None:
    assert Stage().connect(client_id, version=version).connack.reason_code == 0


# --- assigned --------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_an_empty_client_id_is_answered_with_an_assigned_one_that_works() -> None:
    stage = Stage()
    first = stage.connect("", session_expiry_interval=60)
    assigned = first.connack.properties.assigned_client_identifier
    assert assigned
    first.close()
    again = stage.connect(assigned, clean_start=False)
    assert again.connack.session_present
    assert again.connack.properties.assigned_client_identifier is None


@pytest.mark.spec("MQTT-3.1.3-6", "v3:MQTT-3.1.3-6", "v3:MQTT-3.1.3-7")
def test_clients_without_a_client_id_do_not_disturb_each_other(version: int) -> None:
    stage = Stage()
    clients = [stage.connect("", version=version) for _ in range(3)]
    for client in clients:
        client.send(Pingreq())
        client.expect(Pingresp)
    assert len(stage.node.registry.sessions) == 3


@pytest.mark.spec("MQTT-3.2.2-16")
def test_an_assigned_client_id_is_never_that_of_another_session() -> None:
    stage = Stage()
    taken = stage.connect("assigned-1")  # what the stage would assign next
    connack = stage.connect("").connack
    assert connack.properties.assigned_client_identifier != "assigned-1"
    assert not taken.is_closed


@pytest.mark.spec("MQTT-3.1.3-6")
def test_5_may_leave_the_client_id_empty_without_a_clean_start() -> None:
    connack = Stage().connect("", clean_start=False).connack
    assert connack.reason_code == ReasonCode.SUCCESS
    assert not connack.session_present


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.spec("v3:MQTT-3.1.3-7", "v3:MQTT-3.1.3-8")
def test_311_may_not_leave_it_empty_without_a_clean_session() -> None:
    client = Stage().attempt(Connect("", MQTT_311, clean_start=False))
    assert client.raw == b"\x20\x02\x00\x02"
    assert client.is_closed


@pytest.mark.spec("MQTT-3.1.3-8", "v3:MQTT-3.1.3-9")
def test_a_client_id_that_is_not_wanted_is_told_so_and_closed(version: int) -> None:
    unwanted = SameVerdict(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
    client = Stage(hooks=Hooks(authenticator=unwanted)).attempt(Connect("c", version))
    assert client.expect(Connack).reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert client.is_closed


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("size", [0, 1, 23, 24, 65_535])
def test_31_wants_1_to_23_characters_where_longer_ones_are_not_allowed(
    size: int, long: bool
) -> None:
    stage = Stage({"session": {"long_client_ids_v31": long}})
    client = stage.attempt(Connect("x" * size, MQTT_31))
    accepted = 1 <= size <= (65_535 if long else 23)
    assert client.raw[3] == (0 if accepted else 2)
    assert client.is_closed is not accepted


# --- take-over -------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.1.4-3")
def test_the_second_connection_of_a_client_id_ends_the_first_with_0x8e() -> None:
    stage = Stage()
    first = stage.connect("c")
    second = stage.connect("c")
    assert first.expect(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    assert first.is_closed
    assert not second.is_closed


@pytest.mark.spec("v3:MQTT-3.1.4-2")
def test_the_first_connection_of_a_311_client_is_just_closed() -> None:
    stage = Stage()
    first = stage.connect("c", version=MQTT_311)
    second = stage.connect("c", version=MQTT_311)
    assert first.is_closed
    assert first.take() == []
    assert not second.is_closed


def test_a_take_over_keeps_the_session_and_its_messages(version: int) -> None:
    stage = Stage()
    first = stage.connect_durable("c", version=version)
    first.subscribe("t", qos=1)
    stage.connect("p").publish("t", b"x", qos=1)
    first.take()  # received, not acknowledged
    second = stage.connect_durable("c", version=version)
    assert second.connack.session_present
    (message,) = second.publishes()
    assert (message.payload, message.dup) == (b"x", True)


def test_nothing_more_is_processed_from_a_connection_taken_over(version: int) -> None:
    stage = Stage()
    witness = stage.connect("witness")
    witness.subscribe("t")
    first = stage.connect("c", version=version)
    stage.connect("c", version=version)
    first.publish("t", b"late")
    assert witness.publishes() == []


def test_of_two_that_wait_for_their_connack_the_later_wins(version: int) -> None:
    stage = Stage()
    stage.hold_commits = True
    first = stage.attempt(Connect("c", version))
    second = stage.attempt(Connect("c", version))
    stage.release_commits()
    assert first.is_closed
    assert not first.raw
    second.expect(Connack)
    assert stage.node.counters.clients_connected == 1
