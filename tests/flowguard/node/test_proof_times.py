"""A connection ends when the proof of its client's identity expires."""

from dataclasses import dataclass

import pytest

from flowguard.access.rights import Principal
from flowguard.codec.packets import Auth, Connack, Connect, Disconnect, Will
from flowguard.node.connect.authentication import Accept, CheckAnswer, Hooks, Step
from flowguard.session.connection import ServerConnection
from flowguard.types import MQTT_5, MQTT_311, Properties, ReasonCode
from tests.support.stage import Client, Stage

START_S = 1_000_000.0


@dataclass
class Until:
    """Accepts every identity, until an instant."""

    expires_at_s: float | None

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        connection.principal = Principal(connect.username or "", (), self.expires_at_s)
        answer(ReasonCode.SUCCESS, now_s, "")


def stage_until(expires_at_s: float | None) -> Stage:
    return Stage(hooks=Hooks(checker=Until(expires_at_s)), now_s=START_S)


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
def test_it_ends_then_and_not_before(version: int) -> None:
    stage = stage_until(START_S + 10)
    client = stage.connect("c", version=version)
    stage.advance(9.5)
    assert not client.is_closed
    stage.advance(1)
    assert client.is_closed
    if version == MQTT_5:
        why = Properties(reason_string="the token has expired")
        assert client.take() == [Disconnect(ReasonCode.MAXIMUM_CONNECT_TIME, why)]
    else:
        assert client.take() == []


def test_the_session_goes_on_and_the_will_is_sent() -> None:
    stage = stage_until(START_S + 10)
    client = Client(stage, MQTT_5)
    wanted = Properties(session_expiry_interval=3_600)
    client.send(Connect("c", MQTT_5, will=Will("gone", b"x"), properties=wanted))
    assert client.expect(Connack).reason_code == 0
    stage.node.hooks.checker = Until(None)
    watcher = stage.connect("w")
    watcher.subscribe("gone")
    stage.advance(11)
    assert [message.topic for message in watcher.publishes()] == ["gone"]
    assert stage.connect("c", clean_start=False).connack.session_present


def test_without_an_end_and_after_the_connection_there_is_no_timer() -> None:
    stage = stage_until(None)
    before = len(stage.node.timers)
    stage.connect("c")
    assert len(stage.node.timers) == before
    stage.node.hooks.checker = Until(START_S + 1e9)
    for _ in range(20):
        stage.connect("d").send(Disconnect())
    assert len(stage.node.timers) <= before + 1
    stage.advance(1)


def test_a_proof_that_expired_while_the_store_was_slow_lets_nobody_stay() -> None:
    stage = stage_until(START_S + 1)
    stage.hold_commits = True
    client = stage.connect("c", clean_start=False, session_expiry_interval=3_600)
    stage.advance(2)
    assert client.take() == []
    stage.release_commits()
    stage.advance(0.2)
    last = client.take()[-1]
    assert isinstance(last, Disconnect)
    assert last.reason_code == ReasonCode.MAXIMUM_CONNECT_TIME


@dataclass
class ForTenSeconds:
    """A method by which whoever asks has proved who it is, for a while."""

    connection: ServerConnection

    def step(self, data: bytes | None, now_s: float) -> Step:
        self.connection.principal = Principal("ann", (), now_s + 10)
        return Accept()


def test_who_proves_it_anew_in_time_stays_until_the_new_end() -> None:
    method = "M"
    makers = {method: lambda connection, _: ForTenSeconds(connection)}
    stage = Stage(hooks=Hooks(methods=makers), now_s=START_S)
    client = stage.connect("c", authentication_method=method)
    stage.advance(8)
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method=method)))
    stage.advance(9)
    assert not client.is_closed
    stage.advance(2)
    assert client.is_closed


@pytest.mark.parametrize("said", [None, "bob"])
def test_a_client_takes_turns_under_the_name_that_it_proved(said: str | None) -> None:
    class Named:
        def check(
            self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
        ) -> None:
            connection.principal = Principal("ann")
            answer(ReasonCode.SUCCESS, now_s, "")

    stage = Stage(hooks=Hooks(checker=Named()))
    assert stage.attempt(Connect("c", username=said)).connection.tenant == "ann"
