"""The limits of clients: by load, by weight, in turns; and how the node announces them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq, Puback, Will
from flowguard.config import SessionSettings
from flowguard.records import PutInbound
from flowguard.session.handshake import grant, receive_maximum_of
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode
from tests.support.readings import acknowledged, in_process
from tests.support.stage import Client, Stage


def slow(flow: dict[str, Any], publishers: int = 1, **sessions: int) -> tuple[Stage, list[Client]]:
    """Publishers of QoS 1 to a durable session of a node whose store hangs."""
    stage = Stage({"flow": flow, "session": sessions})
    stage.connect_durable("s").subscribe("t", qos=1)
    clients = [stage.connect(f"p{number}", version=MQTT_311) for number in range(publishers)]
    stage.hold_commits = True
    return stage, clients


def messages(count: int, size_bytes: int = 0, topic: str = "t") -> list[Publish]:
    return [Publish(topic, bytes(size_bytes), 1, packet_id=n) for n in range(1, count + 1)]


def commit(stage: Stage) -> None:
    """The store finishes one batch, and hangs again."""
    assert stage.finish_commit()


# --- load ----------------------------------------------------------------------------------------


def test_a_store_that_hangs_closes_the_window_to_one_and_rest_opens_it_to_a_hundred() -> None:
    stage, (client,) = slow({})
    client.send(*messages(2))
    stage.advance(3)
    assert stage.node.guard.window.limit == 1
    assert stage.node.guard.grant.pressure.cause == "store"
    stage.release_commits()
    stage.advance(25)
    assert stage.node.guard.window.limit == 100


def test_each_change_of_the_window_is_remembered_with_its_reason() -> None:
    stage, (client,) = slow({})
    client.send(*messages(2))
    stage.advance(1)
    decisions = stage.node.guard.decisions
    assert decisions
    assert all(grant.why for _, grant in decisions)
    windows = [grant.window for _, grant in decisions]
    assert windows == sorted(windows, reverse=True)
    assert windows[-1] < 100


def test_memory_above_its_objective_closes_the_window() -> None:
    stage = Stage()
    stage.node.guard.observe_memory(950_000_000)
    stage.advance(1)
    assert stage.node.guard.window.limit < 100
    assert stage.node.guard.grant.pressure.cause == "memory"


def test_a_node_at_rest_decides_nothing() -> None:
    stage = Stage()
    stage.advance(5)
    assert not stage.node.guard.decisions


# --- turns ---------------------------------------------------------------------------------------


def test_all_clients_together_have_no_more_in_process_than_the_node_may() -> None:
    stage, clients = slow({"unfinished_max": 8}, publishers=5)
    for client in clients:
        client.send(*messages(20))
    assert stage.node.guard.window.in_process == 8
    stage.release_commits()
    for client in clients:
        assert acknowledged(client) == list(range(1, 21))
    assert stage.node.guard.window.in_process == 0
    assert not stage.node.guard.window.shared


def test_clients_take_turns_where_all_of_them_want_more() -> None:
    stage, clients = slow({"unfinished_max": 4}, publishers=4)
    for client in clients:
        client.send(*messages(40))
    done = dict.fromkeys(range(4), 0)
    for _ in range(20):
        commit(stage)
        for number, client in enumerate(clients):
            done[number] += len(acknowledged(client))
    # The first one had the node for itself before the others came.
    assert max(done.values()) - min(done.values()) <= 4
    assert sum(done.values()) == 80


def test_tenants_take_turns_whatever_the_number_of_their_clients() -> None:
    stage = Stage({"flow": {"unfinished_max": 2}})
    stage.connect_durable("s").subscribe("t", qos=1)
    clients = {}
    for number, tenant in enumerate(["many"] * 9 + ["one"]):
        client = stage.attempt(Connect(f"c{number}", MQTT_311, username=tenant))
        client.take()
        clients[client.connection.session.client_id] = client  # type: ignore[union-attr]
    stage.hold_commits = True
    for client in clients.values():
        client.send(*messages(100))
    done = dict.fromkeys(clients, 0)
    for _ in range(60):
        commit(stage)
        for name, client in clients.items():
            done[name] += len(acknowledged(client))
    assert done["c9"] == pytest.approx(sum(done.values()) / 2, abs=5)


def test_a_fraction_of_a_place_is_given_by_turns_and_on_the_average_what_was_granted() -> None:
    stage, (client,) = slow({})
    client.send(*messages(2))
    stage.advance(3)
    stage.release_commits()
    owed, fractions = 0.0, 0
    while stage.node.guard.window.limit < 50:
        stage.advance(0.1)
        granted = stage.node.guard.grant.window
        if granted >= 1:
            owed += granted - stage.node.guard.window.limit
            fractions += granted % 1 > 0
            assert abs(owed) < 1 + 1e-6
    assert fractions > 10


def test_bytes_in_process_are_bounded_for_the_whole_node() -> None:
    stage, clients = slow({"unfinished_bytes_max": 1 << 20}, publishers=5)
    for client in clients:
        client.send(*messages(4, 300_000))
    assert stage.node.guard.window.in_process_bytes <= (1 << 20) + 300_000
    stage.release_commits()
    for client in clients:
        assert acknowledged(client) == [1, 2, 3, 4]
    assert stage.node.guard.window.in_process_bytes == 0


def test_bytes_in_process_stay_bounded_while_clients_take_turns() -> None:
    stage, clients = slow({"unfinished_bytes_max": 1 << 20}, publishers=20)
    for client in clients:
        client.send(*messages(4, 300_000))
    commits_count = 0
    while stage.node.guard.window.in_process_bytes:
        assert stage.node.guard.window.in_process_bytes <= (1 << 20) + 300_000
        commit(stage)
        commits_count += 1
    assert commits_count < 40
    for client in clients:
        assert acknowledged(client) == [1, 2, 3, 4]


def test_a_window_below_one_lets_a_part_of_the_clients_have_a_packet_each() -> None:
    stage, clients = slow({"window_floor": 0.1}, publishers=20)
    clients[0].send(*messages(1))
    stage.advance(10)
    assert stage.node.guard.grant.window == pytest.approx(0.1)
    for client in clients[1:]:
        client.send(*messages(3))
    stage.advance(0.1)
    commit(stage)
    assert sum(in_process(client) for client in clients) == 2
    stage.release_commits()
    assert acknowledged(clients[0]) == [1]
    for client in clients[1:]:
        assert acknowledged(client) == [1, 2, 3]


def test_invariant_02_a_client_that_leaves_while_it_waits_or_has_its_turn_leaves_nothing() -> None:
    stage, clients = slow({"unfinished_max": 2}, publishers=6)
    for client in clients:
        client.send(*messages(5))
    for client in clients[::2]:
        client.close()
    commit(stage)
    for client in clients[1::2]:
        client.disconnect()
    stage.release_commits()
    window = stage.node.guard.window
    assert (window.in_process, window.in_process_bytes, window.permits) == (0, 0, 0)
    assert (len(window.busy), len(stage.node.guard.pool), window.shared) == (0, 0, False)
    assert window.active == 0


def test_a_rate_holds_a_client_back_until_the_next_tick() -> None:
    stage = Stage({"flow": {"policy": "rate-limit-v1"}})
    stage.advance(0.1)
    credits = stage.node.guard.window.credits
    assert credits is not None
    client = stage.connect("p", version=MQTT_311)
    client.send(*messages(3 * credits))
    assert len(acknowledged(client)) == credits
    stage.advance(0.1)
    assert len(acknowledged(client)) == credits
    stage.advance(0.1)
    assert len(acknowledged(client)) == credits


def test_a_backlog_is_replayed_no_faster_than_the_window_and_live_messages_follow_it() -> None:
    stage = Stage()
    stage.connect_durable("s").subscribe("t", qos=1)
    stage.node.registry.sessions["s"].outbound.connection.transport.disconnect(  # type: ignore[union-attr]
        session_expiry_interval=600
    )
    publisher = stage.connect("p")
    for number in range(20):
        publisher.publish("t", b"%d" % number, qos=1)
    stage.node.guard.window.resize(3)
    subscriber = stage.connect_durable("s")
    publisher.publish("t", b"live", qos=1)
    first = subscriber.publishes(acknowledge=False)
    assert len(first) == 3
    payloads = [packet.payload for packet in first]
    for packet in first:
        subscriber.send(Puback(packet.packet_id))
    payloads += [packet.payload for packet in subscriber.publishes()]
    assert payloads == [b"%d" % number for number in range(20)] + [b"live"]


# --- limits in packets to clients ----------------------------------------------------------------


def test_receive_maximum_is_what_the_node_allows_just_now_but_not_less_than_ten() -> None:
    stage = Stage({"session": {"receive_maximum": 1_000}})
    assert stage.connect("calm").connack.properties.receive_maximum == 32
    stage.node.guard.window.resize(20)
    assert stage.connect("busy").connack.properties.receive_maximum == 20
    stage.node.guard.window.resize(1)
    assert stage.connect("crowd").connack.properties.receive_maximum == 10


@given(st.integers(1, 65_535), st.integers(1, 65_535))
def test_what_is_told_never_exceeds_what_holds(receive_maximum: int, window: int) -> None:
    settings = SessionSettings(receive_maximum=receive_maximum)
    told = grant(Connect("c"), settings, window).receive_maximum
    assert 1 <= told <= receive_maximum
    assert told == receive_maximum or told == min(32, max(10, window))


@given(st.integers(1, 65_535), st.integers(1, 1_000))
def test_messages_that_are_heavy_are_told_fewer_but_never_one_alone(
    window: int, weight: int
) -> None:
    told = receive_maximum_of(window, weight)
    assert told == 2 or 2 <= told <= min(32, max(10, window) // weight)


def test_who_sent_heavy_messages_is_told_fewer_when_it_comes_back() -> None:
    stage = Stage({"flow": {"cost_bytes": 100}})
    stage.connect_durable("s").subscribe("t", qos=1)
    heavy = stage.connect_durable("p")
    assert heavy.connack.properties.receive_maximum == 32
    heavy.publish("t", bytes(950), qos=1)
    heavy.close()
    again = stage.connect_durable("p")
    assert again.connack.properties.receive_maximum == 10
    again.publish("t", b"light", qos=1)
    again.close()
    assert stage.connect_durable("p").connack.properties.receive_maximum == 32


def test_who_comes_back_may_repeat_what_it_was_allowed_before_though_it_is_told_less() -> None:
    stage = Stage()
    first = stage.connect_durable("p")
    publishes = [Publish("t", b"", 2, dup=True, packet_id=n) for n in range(1, 12)]
    first.send(*publishes)
    first.close()
    stage.node.guard.window.resize(10)
    again = stage.connect_durable("p")
    assert again.connack.properties.receive_maximum == 10
    again.send(*publishes)
    assert not again.is_closed
    assert [packet.packet_id for packet in again.take()] == list(range(1, 12))


def test_who_is_refused_is_told_when_to_come_back() -> None:
    stage = Stage({"flow": {"connects_in_process_max": 1, "connect_buffer_max": 0}})
    stage.hold_commits = True
    stage.attempt(Connect("first", properties=Properties(session_expiry_interval=60)))
    refused = stage.attempt(Connect("second")).expect(Connack)
    assert refused.reason_code == ReasonCode.SERVER_BUSY
    ((name, value),) = refused.properties.user_properties
    assert name == "retry-after-ms"
    assert int(value) >= 500
    old = stage.attempt(Connect("third", MQTT_311)).expect(Connack)
    assert old.properties.user_properties == ()


def test_a_hint_that_is_too_long_for_the_client_is_left_out() -> None:
    """[MQTT-3.2.2-20] The refusal itself still fits."""
    stage = Stage({"flow": {"connects_in_process_max": 1, "connect_buffer_max": 0}})
    stage.hold_commits = True
    stage.attempt(Connect("first", properties=Properties(session_expiry_interval=60)))
    refused = stage.attempt(Connect("second", properties=Properties(maximum_packet_size=10)))
    assert refused.expect(Connack).properties.user_properties == ()


def test_who_asks_again_is_served_once() -> None:
    stage = Stage({"flow": {"connects_in_process_max": 1}})
    stage.hold_commits = True
    stage.attempt(Connect("first", properties=Properties(session_expiry_interval=60)))
    older = stage.attempt(Connect("again"))
    newer = stage.attempt(Connect("again"))
    assert older.is_closed
    assert not older.inbox
    stage.release_commits()
    assert newer.expect(Connack).reason_code == 0


# --- policies ------------------------------------------------------------------------------------


def test_a_shadow_reports_and_changes_nothing() -> None:
    """Invariant 15: the same history with and without it."""
    histories = []
    for shadow in (None, "static-1"):
        stage, clients = slow({"shadow_policy": shadow, "window_max": 20}, publishers=3)
        history: list[Any] = []
        for _ in range(30):
            for client in clients:
                client.send(*messages(2))
            stage.advance(0.1)
            if stage.held is not None:
                commit(stage)
            history.append((stage.node.guard.window.limit, [acknowledged(c) for c in clients]))
        histories.append(history)
    assert histories[0] == histories[1]
    guard = stage.node.guard
    assert guard.shadow is not None
    report = guard.shadow.report()
    assert report.policy == "static-1"
    assert report.paused_ticks > 0


@pytest.mark.parametrize("policy", ["unlimited", "static-1", "static-100", "vegas", "emqx-flag"])
def test_the_policy_of_the_settings_decides(policy: str) -> None:
    stage, (client,) = slow({"policy": policy})
    stage.advance(0.1)
    client.send(*messages(300))
    expected = {"unlimited": 300, "static-1": 1, "static-100": 100}
    if policy in expected:
        assert in_process(client) == expected[policy]
    stage.release_commits()
    assert acknowledged(client) == list(range(1, 301))
    assert stage.connect("new", version=MQTT_5).connack.reason_code == 0


def test_a_rate_counts_packets_that_come_one_by_one_as_well() -> None:
    stage = Stage({"flow": {"policy": "rate-limit-v1"}})
    stage.advance(0.1)
    credits = stage.node.guard.window.credits
    assert credits is not None
    client = stage.connect("p", version=MQTT_311)
    for packet in messages(credits + 5):
        client.send(packet)
    assert len(acknowledged(client)) == credits


def test_nothing_overtakes_what_is_held_behind_a_heavy_packet() -> None:
    stage, (client,) = slow({"window_max": 2, "cost_bytes": 100})
    client.send(*messages(1, 500), *messages(3)[1:])
    client.send(Publish("t", b"", 1, packet_id=4))
    stage.release_commits()
    assert acknowledged(client) == [1, 2, 3, 4]


def test_a_rate_counts_publishes_only_and_each_of_them_once() -> None:
    stage, (client,) = slow({"policy": "rate-limit-v1"})
    stage.advance(0.1)
    credits = stage.node.guard.window.credits
    assert credits is not None
    client.send(*[Pingreq()] * (2 * credits), *messages(3 * credits))
    stage.release_commits()
    done = []
    for _ in range(4):
        done.append(len(acknowledged(client)))
        stage.advance(0.1)
    assert done == [credits, credits, credits, 0]


# --- batches, ends, and what is not complete -----------------------------------------------------


def test_a_batch_of_light_and_heavy_packets_is_worked_off_to_its_end() -> None:
    """QoS 0 has no cost: the capacity that seems to be left must not hide waiting packets."""
    stage, _ = slow({})
    stage.hold_commits = False
    client = stage.connect("mixed", version=MQTT_311, will=Will("will", b"died"))
    witness = stage.connect("witness")
    witness.subscribe("will")
    stage.hold_commits = True
    mixed = [Publish("t", b"", n % 2, packet_id=n if n % 2 else 0) for n in range(1, 1_001)]
    client.connection.receive_data(
        b"".join(encode(packet, MQTT_311) for packet in [*mixed, Disconnect()]), stage.now_s
    )
    client.close()
    before = stage.node.counters.publish_received
    assert before < 1_000
    stage.release_commits()
    assert stage.node.counters.publish_received == 1_000
    assert not witness.publishes()


def test_a_packet_that_is_not_complete_waits_for_no_turn() -> None:
    stage, (busy, large) = slow({"unfinished_max": 1}, publishers=2)
    busy.send(*messages(2))
    assert stage.node.guard.window.shared
    data = encode(Publish("t", bytes(900_000), 1, packet_id=1), MQTT_311)
    for start in range(0, 800_000, 65_536):
        assert large.connection.receive_data(data[start : start + 65_536], stage.now_s)
    assert len(stage.node.guard.pool) == 1
    large.close()
    assert large.is_closed


def test_work_in_process_keeps_nothing_of_what_its_client_had_not_finished() -> None:
    stage, (client,) = slow({})
    client.send(*messages(1))
    inbound = client.connection.inbound
    assert inbound is not None
    client.send_bytes(encode(Publish("t", bytes(900_000), 1, packet_id=2), MQTT_311)[:-1])
    client.close()
    assert inbound.waiting_bytes == 0
    assert stage.node.state.input_holders.budget.used_bytes == 0


def test_nobody_has_its_turn_while_the_node_admits_nothing() -> None:
    stage, clients = slow({"unfinished_max": 2, "journal_ops_max": 5}, publishers=4)
    for client in clients:
        client.send(*messages(5))
    for number in range(5):
        stage.node.journal.note(PutInbound("x", number))
    stage.settle()
    assert stage.node.guard.window.closed
    waiting = len(stage.node.guard.pool)
    stage.node.guard.window.in_process -= 1  # As if work were done that frees no journal.
    stage.settle()
    assert len(stage.node.guard.pool) == waiting
    stage.node.guard.window.in_process += 1
    stage.release_commits()
    for client in clients:
        assert acknowledged(client) == [1, 2, 3, 4, 5]
