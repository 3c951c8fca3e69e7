"""Processor time of CONNECTs, which must not count as time of messages."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from flowguard.codec.packets import Auth, Connack, Connect
from flowguard.node.connect.authentication import Accept as Accepted
from flowguard.node.connect.authentication import Hooks, Proceed, Step
from flowguard.session.connection import ServerConnection
from flowguard.types import Properties, ReasonCode
from tests.support.stage import Client, Stage

METHOD = "one-question"
Checked = Callable[[ReasonCode, float, str], None]


class Later:
    """Checks passwords only when the test calls for it."""

    def __init__(self) -> None:
        self.asked: list[Checked] = []

    def check(
        self, connection: ServerConnection, packet: Connect, now_s: float, checked: Checked
    ) -> None:
        self.asked.append(checked)


class OneQuestion:
    def __init__(self, connection: ServerConnection, connect: Connect) -> None:
        self._is_asked = False

    def step(self, data: bytes | None, now_s: float) -> Step:
        if self._is_asked:
            return Accepted()
        self._is_asked = True
        return Proceed(b"?")


def stage_of(hooks: Hooks | None = None, **flow: int) -> Stage:
    """Each look at its processor's clock is a second after the one before."""
    stage = Stage({"flow": flow}, hooks=hooks)
    stage.processor_clock = partial(next, map(float, count()))
    return stage


def connecting_s(stage: Stage) -> float:
    """Since this was asked last."""
    return stage.node.guard.observer.take(stage.now_s, 0, 0).connecting_s


def durable(client_id: str) -> Connect:
    return Connect(client_id, properties=Properties(session_expiry_interval=60))


def test_a_connect_that_finds_a_place_at_once_counts_before_its_commit_and_after() -> None:
    stage = stage_of()
    stage.hold_commits = True
    client = stage.attempt(durable("c"))
    assert connecting_s(stage) == 1.0
    stage.hold_commits = False
    stage.settle()
    assert client.expect(Connack).reason_code == 0
    assert connecting_s(stage) == 1.0


def test_a_step_that_leads_to_another_at_once_is_counted_with_it() -> None:
    """A client that the store need not know, while the store takes nothing."""
    stage = stage_of()
    stage.node.state.read_only = True
    stage.connect("c")
    assert connecting_s(stage) == 1.0


def test_one_that_has_waited_counts_when_it_gets_its_place() -> None:
    stage = stage_of(connects_in_process_max=1)
    stage.hold_commits = True
    stage.attempt(durable("c"))
    waiting = stage.attempt(durable("d"))
    assert connecting_s(stage) == 1.0
    stage.hold_commits = False
    stage.settle()
    assert waiting.expect(Connack).reason_code == 0
    assert connecting_s(stage) == 3.0


def test_what_follows_the_check_of_a_password_counts() -> None:
    later = Later()
    stage = stage_of(Hooks(checker=later))
    client = stage.attempt(durable("c"))
    assert connecting_s(stage) == 1.0
    (checked,) = later.asked
    checked(ReasonCode.SUCCESS, stage.now_s, "")
    stage.settle()
    assert client.expect(Connack).reason_code == 0
    assert connecting_s(stage) == 2.0


def asked(stage: Stage) -> Client:
    """A client that has been asked its question."""
    properties = Properties(authentication_method=METHOD, session_expiry_interval=60)
    client = stage.attempt(Connect("c", properties=properties))
    client.expect(Auth)
    return client


def answer(reason: ReasonCode = ReasonCode.CONTINUE_AUTHENTICATION) -> Auth:
    return Auth(reason, Properties(authentication_method=METHOD, authentication_data=b"!"))


def test_an_answer_on_the_way_in_counts_and_one_to_be_asked_anew_does_not() -> None:
    stage = stage_of(Hooks(methods={METHOD: OneQuestion}))
    client = asked(stage)
    assert connecting_s(stage) == 1.0
    client.send(answer())
    assert client.expect(Connack).reason_code == 0
    assert connecting_s(stage) == 2.0
    client.send(answer(ReasonCode.RE_AUTHENTICATE))
    client.send(answer())
    client.take()
    assert connecting_s(stage) == 0.0


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_do_not_count(qos: int) -> None:
    stage = stage_of()
    client = stage.connect_durable("c")
    connecting_s(stage)
    client.publish("t", b"x", qos=qos)
    client.take()
    assert connecting_s(stage) == 0.0


def test_a_refused_connect_does_not_count() -> None:
    """Refusing has a budget of its own."""
    stage = stage_of(connects_in_process_max=1, connect_buffer_max=0)
    stage.hold_commits = True
    stage.attempt(durable("c"))
    connecting_s(stage)
    refused = stage.attempt(durable("d"))
    assert refused.expect(Connack).reason_code == ReasonCode.SERVER_BUSY
    assert connecting_s(stage) == 0.0
