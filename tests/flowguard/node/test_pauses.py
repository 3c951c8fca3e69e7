"""A loop that was paused reads before it judges: no client is late whose bytes are unread.

A process or a virtual machine was stopped, or memory is read back from a disk: timers fire first,
while packets that arrived meanwhile are still in the sockets.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import Auth, Connack, Connect, Puback, Will
from flowguard.node.connect.authentication import Hooks
from flowguard.types import MQTT_5, Properties, ReasonCode
from tests.support.authentication import TwoSteps
from tests.support.stage import TICK_S, Client, Stage

PAUSES_S = st.floats(0.0, 100_000.0)
LONG_S = 3_600.0


def answers(client: Client) -> list[int]:
    """Reason codes of the CONNACKs that came."""
    return [packet.reason_code for packet in client.take() if isinstance(packet, Connack)]


# --- before CONNACK --------------------------------------------------------------------------


@given(pause_s=PAUSES_S, before_s=st.floats(0.0, 9.0))
def test_a_connect_that_came_during_a_pause_is_answered(pause_s: float, before_s: float) -> None:
    stage = Stage()
    clients = [stage.open() for _ in range(20)]
    stage.advance(before_s)
    stage.pause(pause_s)
    for number, client in enumerate(clients):
        client.send(Connect(f"c{number}", MQTT_5))
        assert answers(client) == [0]


def test_who_sent_nothing_during_the_pause_either_is_late_as_soon_as_that_is_known() -> None:
    stage = Stage()
    client = stage.open()
    stage.pause(LONG_S)
    assert not client.is_closed
    stage.advance(TICK_S)
    assert client.is_closed


@given(pause_s=PAUSES_S)
def test_a_step_of_an_authentication_that_came_during_a_pause_counts(pause_s: float) -> None:
    stage = Stage(hooks=Hooks(methods={"two": TwoSteps}))
    properties = Properties(authentication_method="two")
    client = stage.attempt(Connect("c", MQTT_5, properties=properties))
    client.expect(Auth)
    stage.pause(pause_s)
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
    assert answers(client) == [0]


def crowded(**flow: Any) -> tuple[Stage, Client, list[Client]]:
    """A node with one slot, the client that has it, and the clients that wait for it."""
    stage = Stage({"flow": {"connects_in_process_max": 1, **flow}})
    stage.hold_commits = True
    inside = stage.connect_durable("inside")
    waiting = [stage.attempt(Connect(f"w{number}", MQTT_5)) for number in range(10)]
    assert stage.node.guard.gate.buffered == len(waiting)
    return stage, inside, waiting


@given(pause_s=PAUSES_S)
def test_who_waits_for_a_place_has_not_lost_patience_by_our_pause(pause_s: float) -> None:
    stage, _, waiting = crowded()
    stage.pause(pause_s)
    stage.release_commits()
    for client in waiting:
        assert answers(client) == [0]


def test_who_gave_up_during_the_pause_is_not_served() -> None:
    stage, _, waiting = crowded()
    stage.pause(LONG_S)
    for client in waiting[:5]:
        client.close()
    stage.release_commits()
    assert [answers(client) for client in waiting] == [[]] * 5 + [[0]] * 5
    assert "w0" not in stage.node.registry.sessions


def test_who_still_waits_when_everything_is_read_is_told_137() -> None:
    stage, _, waiting = crowded()
    stage.pause(LONG_S)
    stage.advance(1.0)
    # The CONNECT inside is rejected, as its commit has stalled: the first one takes its slot.
    assert [answers(client) for client in waiting] == [[0], *[[ReasonCode.SERVER_BUSY]] * 9]


# --- sessions --------------------------------------------------------------------------------


@given(pause_s=PAUSES_S, delay_s=st.integers(1, 1_000))
def test_a_will_is_not_sent_for_who_came_back_during_a_pause(pause_s: float, delay_s: int) -> None:
    stage = Stage()
    witness = stage.connect("witness")
    witness.subscribe("w")
    will = Will("w", b"gone", properties=Properties(will_delay_interval=delay_s))
    options = {"session_expiry_interval": 10_000}
    stage.connect("c", clean_start=False, will=will, **options).close()
    stage.pause(pause_s)
    back = stage.connect("c", clean_start=False, **options)
    assert back.connack.session_present
    stage.advance(2 * TICK_S)
    assert not witness.publishes()


def test_a_will_is_sent_for_who_did_not_come_back() -> None:
    stage = Stage()
    witness = stage.connect("witness")
    witness.subscribe("w")
    will = Will("w", b"gone", properties=Properties(will_delay_interval=10))
    stage.connect("c", will=will, session_expiry_interval=10_000).close()
    stage.pause(LONG_S)
    assert not witness.publishes()
    stage.advance(TICK_S)
    assert [message.payload for message in witness.publishes()] == [b"gone"]


@given(pause_s=PAUSES_S, expiry_s=st.integers(1, 1_000))
def test_a_session_does_not_expire_whose_client_came_back_during_a_pause(
    pause_s: float, expiry_s: int
) -> None:
    stage = Stage()
    client = stage.connect("c", clean_start=False, session_expiry_interval=expiry_s)
    client.subscribe("t", qos=1)
    client.close()
    stage.pause(pause_s)
    back = stage.connect("c", clean_start=False, session_expiry_interval=expiry_s)
    assert back.connack.session_present


# --- connected -------------------------------------------------------------------------------


@given(pause_s=PAUSES_S, keep_alive_s=st.integers(1, 100))
def test_nobody_was_silent_whose_bytes_came_during_a_pause(
    pause_s: float, keep_alive_s: int
) -> None:
    stage = Stage()
    client = stage.connect("c", keep_alive_s=keep_alive_s)
    stage.pause(pause_s)
    client.publish("t", b"x")
    stage.advance(keep_alive_s)
    assert not client.is_closed


@pytest.mark.parametrize("pause_s", [0.0, 29.0, 31.0, LONG_S])
def test_a_full_queue_that_was_emptied_during_a_pause_takes_who_waited_for_it(
    pause_s: float,
) -> None:
    session = {"queue_policy": "block", "queue_messages_max": 1, "block_s": 30.0, "inflight_max": 1}
    stage = Stage({"session": session})
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = stage.connect("p")
    for payload in (b"1", b"2", b"3"):
        publisher.publish("t", payload, qos=1)
    assert publisher.connection.blocked
    stage.pause(pause_s)
    (first,) = subscriber.publishes(acknowledge=False)
    subscriber.send(Puback(first.packet_id))
    assert not publisher.connection.blocked
    received = [first.payload, *(message.payload for message in subscriber.publishes())]
    assert received == [b"1", b"2", b"3"]
    assert not stage.node.counters.dropped
