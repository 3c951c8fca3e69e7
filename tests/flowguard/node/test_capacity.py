"""The maximum number of clients of a node, and the time that it waits for a CONNECT."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Pingreq, Pingresp, Will
from flowguard.config import FlowSettings
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.policy import Arrival
from flowguard.node.connect.authentication import Hooks
from flowguard.node.upkeep.outage import STALLED_S
from flowguard.types import MQTT_5, Properties, ReasonCode
from tests.support.stage import Client, Stage


def refused_with(client: Client) -> int:
    """The reason code of a refusing CONNACK after which the server closed."""
    assert client.is_closed
    return client.expect(Connack).reason_code


def as_told(reason: ReasonCode, version: int) -> ReasonCode:
    """Return the reason code that a client sees: 3.1.1 has no code for some reasons."""
    return reason if version == MQTT_5 else ReasonCode.SERVER_UNAVAILABLE


# --- connect timeout -------------------------------------------------------------------------


@pytest.mark.parametrize("first_bytes", [b"", b"\x10", encode(Connect("c"), 5)[:-1]])
def test_a_connection_without_a_complete_connect_is_closed_in_time(first_bytes: bytes) -> None:
    stage = Stage({"flow": {"connect_timeout_s": 5}})
    client = stage.open()
    if first_bytes:
        client.send_bytes(first_bytes)
    stage.advance(4.9)
    assert not client.is_closed
    stage.advance(2)
    assert client.is_closed
    assert not client.raw


def test_single_bytes_do_not_buy_time(version: int) -> None:
    stage = Stage({"flow": {"connect_timeout_s": 5}})
    client = stage.open(version)
    for byte in encode(Connect("a-rather-long-client-id", version), version)[:14]:
        client.send_bytes(bytes((byte,)))
        stage.advance(0.5)
    assert client.is_closed


def test_a_connected_client_is_not_under_the_connect_timeout(version: int) -> None:
    stage = Stage({"flow": {"connect_timeout_s": 5}})
    client = stage.connect("c", version=version)
    stage.advance(10)
    assert not client.is_closed


def test_a_peer_that_waits_for_its_handshake_is_not_silent() -> None:
    """We have not read what it sent; when we have, and have answered, its time begins."""
    stage = Stage({"flow": {"connect_timeout_s": 5}})
    gate: ConnectGate[object] = ConnectGate(FlowSettings())
    stage.node.door.handshakes = gate
    client = stage.open()
    gate.offer(client.connection.transport, Arrival("", 1), stage.now_s)
    stage.advance(23)
    assert not client.is_closed
    gate.settle(client.connection.transport, stage.now_s)
    stage.node.shook_hands(client.connection, stage.now_s)
    stage.advance(4.9)
    assert not client.is_closed
    stage.advance(2)
    assert client.is_closed


# --- connections -----------------------------------------------------------------------------


def test_beyond_the_last_connection_a_client_is_refused(version: int) -> None:
    stage = Stage({"node": {"connections_max": 2}})
    stage.connect("one")
    stage.connect("two")
    client = stage.attempt(Connect("three", version))
    assert refused_with(client) == as_told(ReasonCode.QUOTA_EXCEEDED, version)


def test_who_comes_back_takes_the_place_that_it_has(version: int) -> None:
    """Else a fleet whose network was cut is kept out by its own dead connections."""
    stage = Stage({"node": {"connections_max": 2}})
    before = stage.connect("one", version=version)
    stage.connect("two")
    stage.connect("one", version=version)
    assert before.is_closed
    assert refused_with(stage.attempt(Connect("three"))) == ReasonCode.QUOTA_EXCEEDED


def test_a_closed_connection_makes_room_for_another(version: int) -> None:
    stage = Stage({"node": {"connections_max": 1}})
    stage.connect("one").close()
    stage.connect("two", version=version)


# --- sessions --------------------------------------------------------------------------------


def test_beyond_the_last_session_that_can_be_kept_another_is_refused(version: int) -> None:
    stage = Stage({"node": {"sessions_max": 2}})
    stage.connect_durable("one").close()
    stage.connect_durable("two")
    expiry = Properties(session_expiry_interval=60) if version == MQTT_5 else Properties()
    client = stage.attempt(Connect("three", version, clean_start=False, properties=expiry))
    assert refused_with(client) == as_told(ReasonCode.QUOTA_EXCEEDED, version)


def test_sessions_that_are_kept_lock_nobody_out(version: int) -> None:
    """A client without a durable session needs no more than a connection."""
    stage = Stage({"node": {"sessions_max": 1}})
    stage.connect_durable("one").close()
    stage.connect("two", version=version)


@pytest.mark.parametrize("clean_start", [False, True])
def test_a_client_with_a_session_needs_no_further_one(version: int, clean_start: bool) -> None:
    stage = Stage({"node": {"sessions_max": 1}})
    stage.connect_durable("one", version=version).close()
    stage.connect("one", version=version, clean_start=clean_start)


def test_a_session_that_ended_makes_room(version: int) -> None:
    stage = Stage({"node": {"sessions_max": 1}})
    stage.connect_durable("one", version=version).close()
    stage.connect("one", version=version).close()
    stage.connect_durable("two", version=version)


# --- the gate --------------------------------------------------------------------------------

TIGHT = {"flow": {"connects_in_process_max": 1, "connect_buffer_max": 1}}


def crowd(stage: Stage, version: int) -> tuple[Client, Client, Client]:
    """One CONNECT in process, one in the buffer, one too many."""
    stage.hold_commits = True
    first, second, third = (stage.attempt(Connect(name, version)) for name in "abc")
    return first, second, third


def test_a_connect_beyond_the_buffer_is_refused_as_busy(version: int) -> None:
    stage = Stage(TIGHT)
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    third = crowd(stage, version)[2]
    assert refused_with(third) == as_told(ReasonCode.SERVER_BUSY, version)
    assert told == ["gate_buffer_full"]


@pytest.mark.parametrize(
    "connect",
    [
        Connect("b", username="u" * 5_000),
        Connect("b", password=bytes(5_000)),
        Connect("b", will=Will("t", bytes(5_000))),
        Connect("b", will=Will("t", b"", properties=Properties(correlation_data=bytes(5_000)))),
        Connect("b", properties=Properties(user_properties=(("", ""),) * 50)),
    ],
)
def test_the_buffer_counts_everything_that_a_connect_brings(connect: Connect) -> None:
    flow = {"connects_in_process_max": 1, "connect_buffer_bytes_max": 5_000}
    stage = Stage({"flow": flow})
    stage.hold_commits = True
    stage.attempt(Connect("a"))
    assert not stage.attempt(Connect("c")).is_closed
    assert refused_with(stage.attempt(connect)) == ReasonCode.SERVER_BUSY


def test_a_connect_in_the_buffer_is_served_in_its_turn(version: int) -> None:
    stage = Stage(TIGHT)
    first, second, _ = crowd(stage, version)
    assert not first.raw
    assert not second.raw
    stage.release_commits()
    for client in (first, second):
        assert client.expect(Connack).reason_code == ReasonCode.SUCCESS
        client.send(Pingreq())
        client.expect(Pingresp)


def test_a_connect_that_waited_too_long_is_refused(version: int) -> None:
    stage = Stage({"flow": {**TIGHT["flow"], "connect_patience_s": 0.5}})
    second = crowd(stage, version)[1]
    stage.advance(STALLED_S - 0.2)
    assert refused_with(second) == as_told(ReasonCode.SERVER_BUSY, version)


def test_a_turn_admits_no_more_than_may_be_in_process(version: int) -> None:
    """A rejection frees a slot at once, but a crowd of strangers still costs many short turns."""

    class Nobody:
        def __init__(self) -> None:
            self.asked = 0

        def authenticate(self, connect: Connect) -> ReasonCode:
            self.asked += 1
            return ReasonCode.SUCCESS if connect.client_id == "first" else ReasonCode.BANNED

    nobody = Nobody()
    stage = Stage({"flow": {"connects_in_process_max": 1}}, hooks=Hooks(nobody))
    stage.hold_commits = True
    first = stage.attempt(Connect("first", version))
    strangers = [stage.attempt(Connect(f"c{number}", version)) for number in range(5)]
    assert nobody.asked == 1
    first.connection.end(None, stage.now_s)
    stage.settle()
    assert nobody.asked == 1  # Its claim is still work in process.
    batch, stage.held, stage.hold_commits = stage.held, None, False
    assert batch is not None
    stage.make_durable(batch)
    stage.answer()
    stage.node.turn(stage.now_s)
    assert nobody.asked == 2
    assert stage.node.has_work
    stage.settle()
    assert all(stranger.is_closed for stranger in strangers)


def test_a_client_that_leaves_the_buffer_takes_no_place(version: int) -> None:
    stage = Stage(TIGHT)
    first, second, _ = crowd(stage, version)
    second.close()
    assert stage.node.guard.gate.buffered == 0
    first.close()
    stage.release_commits()
    assert stage.node.guard.gate.in_process == 0
    assert stage.node.registry.sessions == {}


# --- drain -----------------------------------------------------------------------------------


def test_a_node_that_drains_refuses_new_clients_and_serves_the_others(version: int) -> None:
    stage = Stage()
    client = stage.connect("old", version=version)
    told: list[str] = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append(why)
    stage.node.drain(stage.now_s)
    late = stage.attempt(Connect("late", version))
    assert refused_with(late) == ReasonCode.SERVER_UNAVAILABLE
    assert told == ["the broker drains: it accepts no new clients"]
    client.send(Pingreq())
    client.expect(Pingresp)
