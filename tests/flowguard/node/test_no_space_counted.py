"""A rejection because of a full disk is counted once, under its reason, for any client."""

import pytest

from flowguard.codec.packets import Connack, Connect, Puback, Pubrec, Suback, Subscribe
from flowguard.flow import Reason
from flowguard.node.publish import plans
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode, SubscriptionOptions
from tests.support.stage import Stage

QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED


def full_stage() -> Stage:
    """A durable subscriber of `t` exists and is offline when the disk fills up."""
    stage = Stage()
    subscriber = stage.connect_durable("s")
    subscriber.subscribe("t", qos=1)
    subscriber.close()
    stage.node.state.read_only = True
    return stage


def dropped(stage: Stage) -> dict[Reason, int]:
    return stage.node.counters.dropped


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_a_refused_publish_is_counted(
    qos: int,
    answer: type[Puback | Pubrec],
    retain: bool,
    wide: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if wide:
        monkeypatch.setattr(plans, "WIDE_DELIVERIES", 0)
    stage = full_stage()
    publisher = stage.connect("p")
    publisher.send(Publish("t", b"x", qos, retain, packet_id=1))
    assert publisher.expect(answer).reason_code == QUOTA_EXCEEDED
    assert dropped(stage) == {Reason.STORE_FULL: 1}


def test_a_publish_that_waits_for_room_is_not_counted() -> None:
    stage = full_stage()
    stage.hold_commits = True
    stage.connect("p", version=MQTT_311).publish("t", b"x", qos=1)
    assert dropped(stage) == {}


def test_each_refused_filter_is_counted() -> None:
    stage = Stage()
    client = stage.connect_durable("d")
    stage.node.state.read_only = True
    filters = tuple((name, SubscriptionOptions(1)) for name in ("a", "b"))
    client.send(Subscribe(1, filters))
    assert client.expect(Suback).reason_codes == (QUOTA_EXCEEDED, QUOTA_EXCEEDED)
    assert dropped(stage) == {Reason.STORE_FULL: 2}


@pytest.mark.parametrize("finds_out", [False, True])
def test_a_refused_connect_is_counted_and_the_log_is_told_why(finds_out: bool) -> None:
    stage = Stage()
    told = []
    stage.node.on_turned_away = lambda connection, reason, why: told.append((reason, why))
    stage.hold_commits = True
    stage.node.state.read_only = not finds_out
    properties = Properties(session_expiry_interval=3_600)
    client = stage.attempt(Connect("c", MQTT_5, properties=properties))
    if finds_out:
        stage.node.no_space(stage.now_s)
        stage.settle()
    assert client.expect(Connack).reason_code == QUOTA_EXCEEDED
    assert told == [(QUOTA_EXCEEDED, "the store is full")]
    assert dropped(stage) == {Reason.STORE_FULL: 1}
