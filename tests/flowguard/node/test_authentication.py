from typing import Any

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
)
from flowguard.node.connect.authentication import (
    Accept,
    ExchangeMaker,
    Hooks,
    Proceed,
    Refuse,
    Step,
)
from flowguard.session.connection import ServerConnection
from flowguard.types import (
    MQTT_5,
    MQTT_311,
    NO_PROPERTIES,
    Properties,
    ReasonCode,
    SubscriptionOptions,
)
from tests.support.stage import Client, Stage

METHOD = "reverse"


class Reverse:
    """Two questions: the client answers each by reversing it."""

    def __init__(self, connection: ServerConnection, connect: Connect) -> None:
        self.client_id = connect.client_id
        self._questions = [b"first", b"second"]
        self._asked = b""

    def step(self, data: bytes | None, now_s: float) -> Step:
        if self._asked and data != self._asked[::-1]:
            return Refuse()
        if not self._questions:
            return Accept(b"welcome " + self.client_id.encode())
        self._asked = self._questions.pop(0)
        return Proceed(self._asked)


class Generous:
    """Accepts every client at once."""

    def __init__(self, connection: ServerConnection, connect: Connect) -> None:
        pass

    def step(self, data: bytes | None, now_s: float) -> Step:
        return Accept()


def make_stage(**flow: Any) -> Stage:
    methods: dict[str, ExchangeMaker] = {METHOD: Reverse, "generous": Generous}
    return Stage({"flow": flow}, hooks=Hooks(methods=methods))


def properties(data: bytes | None, method: str = METHOD) -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def answer(data: bytes, method: str = METHOD) -> Auth:
    return Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties(data, method))


def begin(stage: Stage, method: str = METHOD) -> Client:
    """A client that has sent its CONNECT."""
    client = stage.open()
    client.send(Connect("c", properties=properties(None, method)))
    return client


def authenticated(stage: Stage) -> Client:
    client = begin(stage)
    client.send(answer(b"tsrif"))
    client.send(answer(b"dnoces"))
    client.take()
    return client


# --- with CONNECT ----------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_answers_that_come_together_are_taken_one_after_the_other(pieces: int) -> None:
    """No client has to send more before the node looks at what has arrived."""
    client = make_stage().open()
    hello = encode(Connect("c", properties=properties(None)), MQTT_5)
    said = [hello, encode(answer(b"tsrif"), MQTT_5), encode(answer(b"dnoces"), MQTT_5)]
    said[-pieces:] = [b"".join(said[-pieces:])]
    for data in said:
        client.send_bytes(data)
    assert client.take()[:2] == [answer(b"first"), answer(b"second")]
    client.send(Pingreq())
    assert client.take() == [Pingresp()]


def test_nonsense_behind_the_connect_is_found_without_more_of_it() -> None:
    client = make_stage().open()
    client.send_bytes(encode(Connect("c", properties=properties(None)), MQTT_5) + b"\x00\x00")
    assert client.is_closed


@pytest.mark.spec("MQTT-4.12.0-2", "MQTT-4.12.0-5", "MQTT-3.15.2-1", "MQTT-3.1.4-6")
def test_the_server_asks_with_auth_and_ends_with_connack() -> None:
    client = begin(make_stage())
    assert client.take() == [answer(b"first")]
    client.send(answer(b"tsrif"))
    assert client.take() == [answer(b"second")]
    client.send(answer(b"dnoces"))
    connack = client.expect(Connack)
    assert connack.reason_code == ReasonCode.SUCCESS
    assert connack.properties.authentication_method == METHOD
    assert connack.properties.authentication_data == b"welcome c"
    client.send(Pingreq())
    assert client.take() == [Pingresp()]


def test_a_method_may_need_no_question() -> None:
    connack = begin(make_stage(), "generous").expect(Connack)
    assert connack.reason_code == ReasonCode.SUCCESS
    assert connack.properties.authentication_method == "generous"
    assert connack.properties.authentication_data is None


@pytest.mark.spec("MQTT-4.12.0-1")
def test_a_method_that_the_server_does_not_know_is_refused() -> None:
    client = begin(make_stage(), "unheard of")
    assert client.take() == [Connack(False, ReasonCode.BAD_AUTHENTICATION_METHOD)]
    assert client.is_closed


@pytest.mark.spec("MQTT-4.12.0-4")
def test_a_wrong_answer_is_refused() -> None:
    stage = make_stage()
    client = begin(stage)
    client.send(answer(b"wrong"))
    assert client.take() == [answer(b"first"), Connack(False, ReasonCode.NOT_AUTHORIZED)]
    assert client.is_closed
    assert not stage.node.registry.sessions
    assert stage.node.counters.connects_refused == 1


def test_a_client_that_fails_ends_nobody_elses_session() -> None:
    stage = make_stage()
    owner = stage.connect("c")
    begin(stage).send(answer(b"wrong"))
    assert not owner.is_closed


@pytest.mark.spec("MQTT-4.12.0-5")
def test_another_method_in_auth_is_a_protocol_error() -> None:
    client = begin(make_stage())
    client.take()
    client.send(answer(b"tsrif", method="generous"))
    assert client.expect(Connack).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


@pytest.mark.spec("MQTT-3.1.2-30")
@pytest.mark.parametrize(
    "packet",
    [Pingreq(), Publish("a", b""), Subscribe(1, (("a", SubscriptionOptions()),))],
    ids=lambda packet: type(packet).__name__,
)
def test_until_connack_a_client_says_nothing_but_auth_and_disconnect(packet: Publish) -> None:
    client = begin(make_stage())
    client.take()
    client.send(packet)
    assert client.expect(Connack).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


def test_a_client_may_give_up() -> None:
    stage = make_stage()
    client = begin(stage)
    client.take()
    client.send(Disconnect())
    assert client.take() == []
    assert client.is_closed
    assert not stage.node.registry.sessions


def test_an_authentication_has_no_more_time_than_a_connect() -> None:
    stage = make_stage(connect_timeout_s=5)
    client = begin(stage)
    stage.advance(4)
    assert not client.is_closed
    stage.advance(3)
    assert client.is_closed


def test_while_a_client_thinks_its_place_among_the_connects_is_another_ones() -> None:
    stage = make_stage(connects_in_process_max=1)
    first, second = begin(stage), begin(stage)
    assert (first.take(), second.take()) == ([answer(b"first")], [answer(b"first")])
    assert stage.node.guard.gate.in_process == 0


# --- without a method ------------------------------------------------------------------------


@pytest.mark.spec("MQTT-4.12.0-6")
def test_without_a_method_there_is_no_auth_and_no_method_in_connack() -> None:
    client = make_stage().connect("c")
    assert client.take() == []
    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None


@pytest.mark.spec("MQTT-4.12.0-7")
@pytest.mark.parametrize("code", [0x18, 0x19])
def test_without_a_method_auth_is_a_protocol_error(code: int) -> None:
    client = make_stage().connect("c")
    client.send(Auth(code, properties(b"x")))
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR
    assert client.is_closed


def test_3_1_1_knows_no_auth() -> None:
    client = make_stage().connect("c", version=MQTT_311)
    client.send_bytes(b"\xf0\x00")
    assert client.take() == []
    assert client.is_closed


# --- again, on an open connection ------------------------------------------------------------


@pytest.mark.spec("MQTT-4.12.1-1", "MQTT-4.12.0-2", "MQTT-4.12.0-5")
def test_a_client_may_authenticate_again() -> None:
    client = authenticated(make_stage())
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, properties(None)))
    assert client.take() == [answer(b"first")]
    client.send(answer(b"tsrif"))
    client.send(answer(b"dnoces"))
    assert client.take() == [
        answer(b"second"),
        Auth(ReasonCode.SUCCESS, properties(b"welcome c")),
    ]


def test_the_conversation_goes_on_meanwhile() -> None:
    stage = make_stage()
    client = authenticated(stage)
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, properties(None)))
    client.take()
    client.subscribe("a", qos=1)
    stage.connect("p").publish("a", b"x", qos=1)
    assert [message.payload for message in client.publishes()] == [b"x"]


@pytest.mark.spec("MQTT-4.12.1-2")
def test_a_client_that_fails_then_is_told_and_closed() -> None:
    client = authenticated(make_stage())
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, properties(None)))
    client.send(answer(b"wrong"))
    assert client.take()[-1] == Disconnect(ReasonCode.NOT_AUTHORIZED)
    assert client.is_closed


@pytest.mark.spec("MQTT-4.12.1-1")
@pytest.mark.parametrize(
    "packet",
    [
        Auth(ReasonCode.RE_AUTHENTICATE, properties(None, "generous")),
        answer(b"out of turn"),
    ],
    ids=["another method", "without 0x19"],
)
def test_it_begins_with_0x19_and_the_same_method(packet: Auth) -> None:
    client = authenticated(make_stage())
    client.send(packet)
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_it_does_not_begin_twice_at_once() -> None:
    client = authenticated(make_stage())
    client.send(*[Auth(ReasonCode.RE_AUTHENTICATE, properties(None))] * 2)
    assert client.expect(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_keep_alive_is_what_ends_a_connection_that_does_not_finish_it() -> None:
    stage = make_stage()
    client = stage.open()
    client.send(Connect("c", keep_alive_s=10, properties=properties(None)))
    client.send(answer(b"tsrif"))
    client.send(answer(b"dnoces"))
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, properties(None)))
    for _ in range(5):
        stage.advance(8)
        client.send(Pingreq())
    assert not client.is_closed
    stage.advance(17)
    assert client.take()[-1] == Disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


# --- sizes -----------------------------------------------------------------------------------


@pytest.mark.spec("MQTT-3.15.2-2", "MQTT-3.15.2-3")
def test_auth_has_nothing_that_could_be_left_out_for_its_size() -> None:
    stage = make_stage()
    client = stage.open()
    wanted = Properties(authentication_method=METHOD, maximum_packet_size=22)
    client.send(Connect("c", properties=wanted))
    (auth,) = client.take()
    assert auth == answer(b"first")
    assert len(client.raw) == 22
    assert auth.properties.reason_string is None  # type: ignore[union-attr]
    assert auth.properties.user_properties == NO_PROPERTIES.user_properties  # type: ignore[union-attr]
