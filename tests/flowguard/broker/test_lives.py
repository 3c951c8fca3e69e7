"""A client's life in log, counts and explanation: connected, subscribed, ended and why."""

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from flowguard.access.rules_toml import parse_toml
from flowguard.broker.logs import levels
from flowguard.broker.logs.life_log import SHOWN_MAX, LifeLog
from flowguard.codec.packets import Connack, Disconnect, Suback, Subscribe
from flowguard.config import LogSettings
from flowguard.node.connect.authentication import Hooks
from flowguard.ops.explain import explain
from flowguard.ops.explain_words import sentences
from flowguard.session.lives import CLOSED, LAST_MAX, LAST_NAME_MAX, LOST, NORMAL, REASONS
from flowguard.types import ReasonCode, SubscriptionOptions
from tests.support.authentication import SameVerdict
from tests.support.real import broker, connect, connect_packet, open_wire, until
from tests.support.stage import Stage

Lines = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    levels.use(LogSettings(clients="debug", subscriptions="debug"))
    yield
    levels.use(LogSettings())


def named(lines: Lines, event: str) -> Lines:
    return [line for line in lines if line["event"] == event]


async def test_log_names_a_client_that_connects_subscribes_and_disconnects() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wire = await open_wire(running)
            await wire.send(replace(connect_packet("c"), username="u", keep_alive_s=30))
            await wire.expect(Connack)
            await wire.send(Subscribe(1, (("a/#", SubscriptionOptions(1)),)))
            await wire.expect(Suback)
            host, port = wire.stream.socket.getsockname()
            listener = str(running.addresses[0])
            await wire.send(Disconnect())
            await until(lambda: running.node.counters.clients_connected == 0)
            await wire.close()
    (connected,), (ended,) = named(lines, "connected"), named(lines, "disconnected")
    assert connected == {
        "event": "connected",
        "log_level": "debug",
        "client_id": "c",
        "user_name": "u",
        "address": f"{host}:{port}",
        "listener": listener,
        "version": "5.0",
        "clean": True,
        "keep_alive_s": 30,
        "session_present": False,
    }
    (subscribed,) = named(lines, "subscribed")
    assert (subscribed["client_id"], subscribed["topic"], subscribed["qos"]) == ("c", "a/#", 1)
    assert (ended["client_id"], ended["reason"], ended["by"]) == (
        "c",
        "normal_disconnection",
        "client",
    )
    assert ended["connected_s"] >= 0


async def test_log_tells_a_lost_connection_from_one_that_the_client_ended() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wire = await connect(running, "c")
            await wire.stream.aclose()
            await until(lambda: running.node.counters.clients_connected == 0)
    (ended,) = named(lines, "disconnected")
    assert (ended["reason"], ended["by"]) == ("connection_lost", "network")


async def test_lives_are_not_logged_by_default() -> None:
    levels.use(LogSettings())
    with capture_logs() as lines:
        async with broker() as running:
            await (await connect(running, "c")).close()
    assert not named(lines, "connected") + named(lines, "disconnected")


async def test_failed_authentication_is_counted_by_reason() -> None:
    hooks = Hooks(authenticator=SameVerdict(ReasonCode.BAD_USER_NAME_OR_PASSWORD))
    with capture_logs() as lines:
        async with broker(hooks=hooks) as running:
            wire = await open_wire(running)
            await wire.send(replace(connect_packet("c"), username="mallory"))
            await wire.expect(Connack)
            failures = running.node.counters.lives.authentication_failures
            await wire.close()
    (failed,) = named(lines, "authentication failed")
    assert failed["user_name"] == "mallory"
    assert failures == {"bad_user_name_or_password": 1}


def test_many_connects_are_some_lines_and_a_count() -> None:
    stage = Stage()
    life_log = LifeLog(stage.node)
    with capture_logs() as lines:
        for number in range(SHOWN_MAX + 5):
            stage.connect(f"c{number}")
        for each in life_log.logs:
            each.flush()
    assert len(named(lines, "connected")) == SHOWN_MAX
    (rest,) = named(lines, "connected, not shown")
    assert rest["clients"] == 5


def test_level_of_a_kind_is_its_own_or_that_of_the_broker() -> None:
    levels.use(LogSettings(level="error", clients="info"))
    assert levels.is_logged("clients", "info")
    assert not levels.is_logged("clients", "debug")
    assert not levels.is_logged("publishes", "warning")
    levels.change("publishes", "debug")
    assert levels.is_logged("publishes", "debug")
    with pytest.raises(ValueError, match="no kind"):
        levels.change("client", "debug")
    with pytest.raises(ValueError, match="no level"):
        levels.change("clients", "trace")


# --- ends ------------------------------------------------------------------------------------


def test_ends_are_counted_by_reason_of_either_side() -> None:
    stage = Stage()
    ends = stage.node.counters.lives.ends
    stage.connect("a").send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    stage.connect("b")
    stage.connect("b")
    stage.connect("c", keep_alive_s=1)
    for _ in range(30):
        stage.advance(0.1)
    assert ends == {"disconnect_with_will": 1, "session_taken_over": 1, "keep_alive_timeout": 1}


def test_each_end_has_a_reason_that_the_metric_has_from_the_start() -> None:
    assert {NORMAL, LOST, CLOSED, "keep_alive_timeout", "session_taken_over"} <= set(REASONS)
    assert len(set(REASONS)) == len(REASONS)


def test_remembered_ends_are_bounded() -> None:
    stage = Stage()
    last = stage.node.counters.lives.last
    stage.connect("x" * (LAST_NAME_MAX + 1)).send(Disconnect())
    assert not last
    for number in range(LAST_MAX + 3):
        stage.connect(f"c{number}").send(Disconnect())
    assert len(last) == LAST_MAX
    assert next(iter(last)) == "c3"


def test_explanation_names_user_roles_filters_and_the_last_end() -> None:
    rules = parse_toml('[roles.guest]\nanonymous = true\nsubscribe = ["#"]\n', "acl.toml")
    stage = Stage(hooks=Hooks(rules=rules))
    stage.connect("c").send(Disconnect())
    stage.connect("c").subscribe("a/#")
    found = explain(stage.node, "c", stage.now_s)
    assert found is not None
    assert (found["roles"], found["filters"]) == (["guest"], ["a/#"])
    assert found["last_end"] is not None
    assert found["last_end"]["reason"] == "normal_disconnection"
    assert found["connected"] is not None
    assert found["connected"]["since_s"] == stage.now_s
    text = " ".join(sentences(found))
    assert "It has the roles guest." in text
    assert "It subscribes to a/#." in text
    assert "The client ended its last connection" in text
    assert "normal_disconnection" in text
