"""What a proxy knows of its clients, without sockets: reasons to wait, ends, counts."""

import pytest

from broker_adapter.proxy.pair import dismiss
from broker_adapter.proxy.states import PairState
from broker_adapter.proxy.watch.catalogue import CATALOGUE
from broker_adapter.proxy.watch.clients import row_of
from broker_adapter.proxy.watch.explain import explained
from broker_adapter.proxy.watch.view import ProxyView
from flowguard.codec.packets import Connack, Connect, Disconnect, Puback
from flowguard.config import FlowSettings
from flowguard.ops.catalogue import CATALOGUE as OF_A_BROKER
from flowguard.ops.common.explanation import Explained
from flowguard.ops.condition import condition_of
from flowguard.ops.status import status_at
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.broker_adapter.proxy_here import face_of
from tests.broker_adapter.proxy_stage import ProxyStage


def explain(stage: ProxyStage, client_id: str) -> Explained:
    found = explained(face_of(stage.core, lambda: stage.now_s), client_id)
    assert found is not None
    return found


def reasons(stage: ProxyStage, client_id: str) -> list[str]:
    return [cause["reason"] for cause in explain(stage, client_id)["paused"]]


def view(stage: ProxyStage) -> ProxyView:
    return ProxyView(face_of(stage.core, lambda: stage.now_s), lambda: 1)


def test_packets_beyond_the_window_wait_for_the_upstream() -> None:
    stage = ProxyStage(FlowSettings(window_max=2))
    client = stage.connect(client_id="me")
    client.send(*(Publish("a", b"x", 1, packet_id=number) for number in (1, 2, 3)))
    assert reasons(stage, "me") == ["window"]
    found = explain(stage, "me")
    assert found["connected"] is not None
    assert found["connected"]["window"] == {"used": 2, "limit": 2}
    assert found["held"]["used"] == 1
    assert "not acknowledged by u0" in " ".join(found["sentences"])
    assert stage.core.paused_count == 1
    assert row_of(client.pair)["state"] == "paused"
    client.answer(Puback(1))
    assert reasons(stage, "me") == []
    assert stage.core.paused_count == 0
    assert stage.core.acknowledged.cumulative()[-1] == 1


def test_a_client_that_ends_while_it_is_paused_is_no_longer_counted() -> None:
    stage = ProxyStage(FlowSettings(window_max=1))
    client = stage.connect(client_id="me")
    client.send(*(Publish("a", b"x", 1, packet_id=number) for number in (1, 2)))
    assert stage.core.paused_count == 1
    client.upstream_ends()
    assert stage.core.paused_count == 0


def test_a_connect_waits_in_the_queue_then_for_its_answer() -> None:
    stage = ProxyStage(FlowSettings(connects_in_process_max=1))
    first, second = stage.open(client_id="first"), stage.open(client_id="second")
    for client in (first, second):
        client.send(Connect(client.client_id, MQTT_5))
    assert reasons(stage, "second") == ["connect_queue"]
    assert reasons(stage, "first") == ["upstream"]
    assert row_of(first.pair)["state"] == "connecting"
    first.answer(Connack(False, 0))
    stage.advance(0.1)
    assert second.pair.state is PairState.CONNECTING
    assert "has not answered its CONNECT" in " ".join(explain(stage, "second")["sentences"])


def test_without_an_upstream_its_clients_wait_and_the_proxy_is_stalled() -> None:
    stage = ProxyStage()
    assert view(stage).not_ready() == ""
    stage.fall()
    stage.open(client_id="me").send(Connect("me", MQTT_5))
    stage.now_s += 12
    assert reasons(stage, "me") == ["upstream"]
    assert view(stage).not_ready() == "the broker behind has not answered for 12 s"
    condition, sentence = condition_of(status_at(CATALOGUE, view(stage).look()))
    assert condition == "stalled"
    assert "the broker behind has not answered for 12 s" in sentence


def test_a_slow_upstream_is_named_as_the_cause() -> None:
    stage = ProxyStage()
    client = stage.connect(client_id="me")
    client.send(Publish("a", b"x", 1, packet_id=1))
    stage.advance(2.0)
    _, sentence = condition_of(status_at(CATALOGUE, view(stage).look()))
    assert "the broker behind acknowledges after" in sentence


@pytest.mark.parametrize(
    ("version", "packet", "reason", "by"),
    [
        (MQTT_5, Disconnect(), "normal_disconnection", "client"),
        (MQTT_311, Disconnect(), "normal_disconnection", "client"),
        (MQTT_5, Disconnect(ReasonCode.DISCONNECT_WITH_WILL), "disconnect_with_will", "client"),
        (MQTT_5, None, "connection_lost", "network"),
    ],
)
def test_the_end_of_a_client_has_its_reason(
    version: int, packet: Disconnect | None, reason: str, by: str
) -> None:
    stage = ProxyStage(half_closes=False)
    client = stage.connect(version, "me")
    if packet is not None:
        client.send(packet)
    client.hang_up()
    stage.drain_upstream()
    end = stage.core.counters.lives.last["me"]
    assert (end.reason, end.by) == (reason, by)
    assert stage.core.counters.clients_connected == 0
    assert "is not connected through this proxy" in explain(stage, "me")["sentences"][0]


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Disconnect(ReasonCode.SESSION_TAKEN_OVER), "session_taken_over"),
        (None, "closed"),
    ],
)
def test_the_upstream_can_end_it(packet: Disconnect | None, reason: str) -> None:
    stage = ProxyStage()
    client = stage.connect(client_id="me")
    if packet is not None:
        client.answer(packet)
    client.upstream_ends()
    end = stage.core.counters.lives.last["me"]
    assert (end.reason, end.by) == (reason, "broker")


def test_a_second_connection_of_the_same_client_is_a_takeover() -> None:
    stage = ProxyStage()
    old, new = stage.connect(client_id="me"), stage.connect(client_id="me")
    assert stage.core.counters.takeovers == 1
    old.upstream_ends()
    assert stage.core.lives.clients == {"me": new.pair}
    new.upstream_ends()
    assert stage.core.lives.clients == {}


def test_a_client_is_dismissed_with_a_packet_only_between_packets() -> None:
    stage = ProxyStage()
    told, within = stage.connect(client_id="told"), stage.connect(client_id="within")
    within.answer_bytes(b"\x30\x7f")  # The begin of a PUBLISH.
    for client in (told, within):
        dismiss(client.pair, ReasonCode.ADMINISTRATIVE_ACTION, stage.now_s)
    stage.settle()
    assert told.packets_got()[1:] == [Disconnect(ReasonCode.ADMINISTRATIVE_ACTION)]
    assert within.packets_got()[1:] == []
    end = stage.core.counters.lives.last["told"]
    assert (end.reason, end.by) == ("administrative_action", "proxy")


def test_the_busiest_clients_are_found_by_their_bytes() -> None:
    stage = ProxyStage(FlowSettings(window_max=1))
    loud, quiet = stage.connect(client_id="loud"), stage.connect(client_id="quiet")
    busiest = view(stage).busiest()
    busiest.look(stage.now_s)
    loud.send(*(Publish("a", b"x" * 100, 1, packet_id=number) for number in (1, 2, 3)))
    quiet.send(Publish("a", b"x", 1, packet_id=1))
    busiest.look(stage.now_s + 1)
    assert [each["client_id"] for each in busiest.talkers()] == ["loud", "quiet"]
    (queue,) = busiest.queues()
    assert (queue["client_id"], queue["messages"]) == ("loud", 2)


def test_limits_change_while_clients_are_connected() -> None:
    stage = ProxyStage(FlowSettings(window_max=2, connects_in_process_max=10))
    client = stage.connect(client_id="me")
    changed = {"window_max": 3, "connects_in_process_max": 2, "connect_buffer_max": 0}
    assert stage.core.use(stage.core.settings.model_copy(update=changed))
    stage.advance(1.0)
    assert stage.core.guard.gate.limit <= 2
    client.send(*(Publish("a", b"x", 1, packet_id=number) for number in range(1, 6)))
    assert client.pair.window is not None
    assert client.pair.window.in_process == 3
    for number in range(3):
        stage.open(client_id=f"c{number}").send(Connect(f"c{number}", MQTT_5))
    assert stage.core.counters.connects_refused == 1


def test_metrics_of_the_proxy_that_a_broker_has_are_of_the_same_kind() -> None:
    brokers = {each.metric: each for each in OF_A_BROKER if each.metric}
    names = [each.metric for each in CATALOGUE if each.metric]
    assert len(names) == len(set(names))
    common = [each for each in CATALOGUE if each.metric in brokers]
    assert len(common) > 40
    for each in common:
        assert (each.kind, each.labels) == (brokers[each.metric].kind, brokers[each.metric].labels)
