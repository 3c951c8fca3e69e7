"""The socket of a client that said DISCONNECT closes when a crash would not undo what it said."""

from typing import Any

import pytest

from flowguard.codec.packets import Connack, Connect, Disconnect, Puback, Will
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, ReasonCode
from tests.support.stage import Client, Stage
from tests.support.store_apart import StoreApart

WILL = Will("will", b"gone", 1)
PATIENCE_S = 8.0
"""Default of `flow.connect_patience_s`."""


def parting(stage: Stage, client: Client, **properties: Any) -> Client:
    """It has said DISCONNECT to a store that takes its time."""
    stage.hold_commits = True
    client.send(Disconnect(properties=Properties(**properties)))
    assert client.is_closed
    return client


def crashed(stage: Stage) -> Stage:
    """Another node on what the store had."""
    stage.restart()
    return stage


@pytest.mark.spec("MQTT-3.14.4-3", "v3:MQTT-3.14.4-3")
def test_whoever_hears_that_the_connection_is_closed_has_no_will_after_a_crash(
    version: int,
) -> None:
    stage = Stage()
    stage.connect_durable("watcher").subscribe("will", qos=1)
    client = stage.connect_durable("c", version=version, will=WILL)
    parting(stage, client)
    assert not client.socket_closed
    stage.release_commits()
    assert client.socket_closed
    crashed(stage)
    assert stage.connect_durable("watcher").publishes() == []


def test_whoever_hears_that_the_connection_is_closed_has_no_session_after_a_crash() -> None:
    stage = Stage()
    client = parting(stage, stage.connect_durable("c"), session_expiry_interval=0)
    assert not client.socket_closed
    stage.release_commits()
    assert client.socket_closed
    assert not crashed(stage).connect_durable("c").connack.session_present


def test_whoever_hears_that_the_connection_is_closed_has_the_expiry_that_it_asked_for() -> None:
    stage = Stage()
    client = parting(stage, stage.connect_durable("c"), session_expiry_interval=10)
    assert not client.socket_closed
    stage.release_commits()
    assert client.socket_closed
    crashed(stage).advance(11)
    assert not stage.connect_durable("c").connack.session_present


def test_what_came_before_is_answered_at_once() -> None:
    stage = Stage()
    client = stage.connect_durable("c", will=WILL)
    stage.hold_commits = True
    client.send(Publish("t", b"x", 1, packet_id=1), Disconnect())
    assert client.expect(Puback).packet_id == 1
    assert not client.socket_closed
    stage.release_commits()
    assert client.socket_closed


@pytest.mark.parametrize(
    "will", [None, WILL], ids=["a durable session alone", "a will of a session that ends"]
)
def test_who_leaves_nothing_to_be_made_durable_waits_for_nobody(
    will: Will | None, version: int
) -> None:
    stage = Stage()
    if will is None:
        client = stage.connect_durable("c", version=version)
    else:
        client = stage.connect("c", version=version, will=will)
    assert parting(stage, client).socket_closed
    assert len(stage.node.partings) == 0


def test_a_will_that_is_published_keeps_no_socket_open() -> None:
    """It is not lost by a crash: then it is published at the restart."""
    stage = Stage()
    client = stage.connect_durable("c", will=WILL)
    stage.hold_commits = True
    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    assert client.socket_closed


def test_a_store_that_does_not_answer_keeps_no_socket_for_ever(version: int) -> None:
    stage = Stage()
    client = parting(stage, stage.connect_durable("c", version=version, will=WILL))
    stage.advance(PATIENCE_S - 0.5)
    assert not client.socket_closed
    stage.advance(1)
    assert client.socket_closed
    assert len(stage.node.partings) == 0
    stage.release_commits()
    assert stage.node.connections_count == 0


def test_it_may_come_back_before_its_former_connection_is_closed(version: int) -> None:
    stage = Stage()
    client = parting(stage, stage.connect_durable("c", version=version, will=WILL))
    again = stage.connect_durable("c", version=version)
    stage.release_commits()
    assert client.socket_closed
    connack = again.expect(Connack)
    assert (connack.reason_code, connack.session_present) == (0, True)
    assert not again.is_closed


def test_many_share_a_commit() -> None:
    stage = Stage()
    clients = [stage.connect_durable(f"c{number}", will=WILL) for number in range(1_000)]
    stage.hold_commits = True
    for client in clients:
        client.send(Disconnect())
    commits_count = sum(iter(stage.finish_commit, False))
    assert all(client.socket_closed for client in clients)
    assert commits_count < 10


@pytest.mark.parametrize("expiry_s", [0, 3_600])
def test_an_application_parts_when_its_own_store_has_it(expiry_s: int) -> None:
    """The store of applications answers after that of devices, if that one has the end of its
    will."""
    session = {"application_client_ids": ("app-*",)}
    stage = Stage({"session": session}, store=StoreApart())
    properties = Properties(session_expiry_interval=3_600)
    client = stage.attempt(Connect("app-1", MQTT_5, False, will=WILL, properties=properties))
    client.expect(Connack)
    stage.hold_commits = stage.hold_apart = True
    client.send(Disconnect(properties=Properties(session_expiry_interval=expiry_s)))
    if not expiry_s:
        stage.release_apart()
        assert not client.socket_closed
        stage.hold_apart = True
    stage.release_commits()
    assert not client.socket_closed
    stage.release_apart()
    assert client.socket_closed
    assert all(record.will is None for record in stage.store.sessions())


def test_311_with_a_session_that_is_kept_is_no_exception() -> None:
    stage = Stage()
    client = parting(stage, stage.connect_durable("c", version=MQTT_311, will=WILL))
    assert not client.socket_closed
    client.close()
    stage.release_commits()
    assert client.socket_closed
