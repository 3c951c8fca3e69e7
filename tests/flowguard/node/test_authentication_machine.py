"""The exchange of AUTH packets in any order: what a client may say when, and what ends it.

A model says of each packet whether it is an answer, right or wrong, or a protocol error.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowguard.codec.packets import Auth, Connack, Connect, Disconnect, Packet, Pingreq, Pingresp
from flowguard.types import NO_PROPERTIES, Properties, ReasonCode
from tests.flowguard.node.test_authentication import METHOD, make_stage, properties

QUESTIONS = (b"first", b"second")
ANSWERS = (b"tsrif", b"dnoces")
CONTINUE, AGAIN = ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE
codes = st.sampled_from([CONTINUE, CONTINUE, CONTINUE, AGAIN])
methods = st.sampled_from([METHOD, METHOD, METHOD, "generous", "unheard of"])
answers = st.sampled_from([*ANSWERS, *ANSWERS, b"wrong", None])


class AuthenticationMachine(RuleBasedStateMachine):
    """One client; `asked` is how many questions it was asked and has not answered all of."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = make_stage()
        self.client = self.stage.open()
        self.method: str | None = None
        self.connected = False
        self.asked = 0
        self.over = False

    @initialize(method=st.sampled_from([None, METHOD, METHOD, METHOD, "generous", "unheard of"]))
    def connects(self, method: str | None) -> None:
        self.method = method
        said = NO_PROPERTIES if method is None else properties(None, method)
        self.client.send(Connect("c", properties=said))
        if method == METHOD:
            self.asked = 1
            self.is_asked(QUESTIONS[0])
        elif method == "unheard of":
            # [MQTT-4.12.0-1]
            self.ends_with(Connack(False, ReasonCode.BAD_AUTHENTICATION_METHOD))
        else:
            (connack,) = self.client.take()
            assert isinstance(connack, Connack)
            # [MQTT-4.12.0-5] [MQTT-4.12.0-6]
            assert connack.properties.authentication_method == method
            self.connected = True

    @precondition(lambda self: not self.over)
    @rule(code=codes, method=methods, data=answers)
    def says(self, code: ReasonCode, method: str, data: bytes | None) -> None:
        under_way = self.asked > 0
        self.client.send(Auth(code, properties(data, method)))
        fits = self.method is not None and method == self.method
        begins = code == AGAIN and self.connected and not under_way
        if not fits or (code == AGAIN and not begins) or (code == CONTINUE and not under_way):
            # [MQTT-4.12.0-5] [MQTT-4.12.0-7] [MQTT-4.12.1-1]
            self.breaks_the_protocol()
        elif begins and method == "generous":
            self.is_accepted(None)
        elif begins:
            self.asked = 1
            self.is_asked(QUESTIONS[0])
        elif data != ANSWERS[self.asked - 1]:
            # [MQTT-4.12.0-4] [MQTT-4.12.1-2]
            refused = ReasonCode.NOT_AUTHORIZED
            self.ends_with(Disconnect(refused) if self.connected else Connack(False, refused))
        elif self.asked < len(QUESTIONS):
            self.is_asked(QUESTIONS[self.asked])
            self.asked += 1
        else:
            self.asked = 0
            self.is_accepted(b"welcome c")

    @precondition(lambda self: not self.over)
    @rule()
    def pings(self) -> None:
        self.client.send(Pingreq())
        if self.connected:
            assert self.client.take() == [Pingresp()]
        else:
            self.breaks_the_protocol()  # [MQTT-3.1.2-30]

    @precondition(lambda self: not self.over)
    @rule()
    def leaves(self) -> None:
        self.client.send(Disconnect())
        assert self.client.take() == []
        self.over = True

    @precondition(lambda self: not self.over and not self.connected)
    @rule()
    def takes_too_long(self) -> None:
        self.stage.advance(self.stage.node.settings.flow.connect_timeout_s + 2)
        self.client.take()
        self.over = True

    @precondition(lambda self: self.over)
    @rule(packet=st.sampled_from([Pingreq(), Auth(CONTINUE, properties(ANSWERS[0]))]))
    def says_more_after_the_end(self, packet: Packet) -> None:
        self.client.send(packet)
        assert self.client.take() == []

    # --- what the model expects --------------------------------------------------------------

    def is_asked(self, question: bytes) -> None:
        # [MQTT-4.12.0-2] [MQTT-4.12.0-3]
        assert self.client.take() == [Auth(CONTINUE, properties(question))]

    def is_accepted(self, data: bytes | None) -> None:
        (answer,) = self.client.take()
        expected = Properties(authentication_method=self.method, authentication_data=data)
        if self.connected:
            assert answer == Auth(ReasonCode.SUCCESS, expected)
        else:
            assert isinstance(answer, Connack)
            assert answer.reason_code == ReasonCode.SUCCESS
            assert answer.properties.authentication_data == data
        self.connected = True

    def breaks_the_protocol(self) -> None:
        (last,) = self.client.take()
        assert isinstance(last, Disconnect if self.connected else Connack)
        assert last.reason_code == ReasonCode.PROTOCOL_ERROR
        self.over = True

    def ends_with(self, packet: Packet) -> None:
        assert self.client.take() == [packet]
        self.over = True

    @invariant()
    def is_closed_exactly_when_it_is_over(self) -> None:
        assert self.client.is_closed == self.over
        node = self.stage.node
        assert node.counters.clients_connected == (self.connected and not self.over)
        assert node.handshakes.authenticating(self.client.connection) == (
            self.asked > 0 and not self.over
        )


@pytest.mark.spec(
    "MQTT-4.12.0-1",
    "MQTT-4.12.0-2",
    "MQTT-4.12.0-3",
    "MQTT-4.12.0-4",
    "MQTT-4.12.0-5",
    "MQTT-4.12.0-6",
    "MQTT-4.12.0-7",
    "MQTT-4.12.1-1",
    "MQTT-4.12.1-2",
)
class TestAuthentication(AuthenticationMachine.TestCase):  # type: ignore[name-defined,misc]
    """The machine as a test."""
