"""Both exchanges, driven by their tables in `transitions`: what the code does is what they say.

A model walks through the table beside a session, with and without a store that has to be asked.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import (
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.session.host import IN_PROCESS
from flowguard.types import Publish, ReasonCode
from tests.flowguard.session.alone import Alone
from tests.flowguard.session.transitions import (
    RECEIVED,
    SENT,
    Event,
    Receiving,
    Reply,
    Sending,
    received_state,
    sent_state,
)

REFUSAL = ReasonCode.UNSPECIFIED_ERROR
UNKNOWN = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
ACKNOWLEDGEMENTS = [Event.PUBACK, Event.PUBREC, Event.PUBREC_REFUSES, Event.PUBCOMP]
expiries = st.sampled_from([0, 60])


def acknowledgement(event: Event, packet_id: int) -> Packet:
    match event:
        case Event.PUBACK:
            return Puback(packet_id)
        case Event.PUBREC:
            return Pubrec(packet_id)
        case Event.PUBREC_REFUSES:
            return Pubrec(packet_id, REFUSAL)
    return Pubcomp(packet_id)


def expected(answer: Reply, packet_id: int) -> list[Packet]:
    """Return the packets that the client gets then; other members of `Reply` send nothing."""
    packets: dict[Reply, Packet] = {
        Reply.PUBREC: Pubrec(packet_id),
        Reply.PUBREL: Pubrel(packet_id),
        Reply.PUBREL_UNKNOWN: Pubrel(packet_id, UNKNOWN),
        Reply.PUBCOMP: Pubcomp(packet_id),
        Reply.PUBCOMP_UNKNOWN: Pubcomp(packet_id, UNKNOWN),
    }
    return [packets[answer]] if answer in packets else []


@pytest.mark.parametrize("table", [SENT, RECEIVED])
def test_each_state_is_left_and_reached(table: dict[tuple[object, Event], object]) -> None:
    states = Sending if table is SENT else Receiving
    assert {state for state, _ in table} == set(states)


def test_every_acknowledgement_has_an_answer_in_every_state() -> None:
    assert set(SENT) == {(state, event) for state in Sending for event in ACKNOWLEDGEMENTS}


@given(
    expiries,
    st.integers(1, 2),
    st.lists(st.sampled_from(ACKNOWLEDGEMENTS), max_size=8),
    st.booleans(),
)
def test_a_message_to_the_client_goes_through_its_table(
    expiry_s: int, qos: int, events: list[Event], comes_back: bool
) -> None:
    alone = Alone(expiry_s=expiry_s)
    alone.open()
    alone.take()
    alone.offer(qos)
    (message,) = alone.take()
    assert isinstance(message, Publish)
    packet_id = message.packet_id
    state: Sending | Receiving = Sending.QOS_1 if qos == 1 else Sending.QOS_2
    for event in events:
        assert isinstance(state, Sending)
        counted = alone.node.counters.unknown_acknowledgements
        answer, state = SENT[state, event]
        alone.send(acknowledgement(event, packet_id))
        alone.commits.commit()
        counted = alone.node.counters.unknown_acknowledgements - counted
        assert counted == (answer in (Reply.COUNTED, Reply.PUBREL_UNKNOWN))
        assert sent_state(alone.session.inflight.messages, packet_id) is state
        if answer is Reply.ENDS:
            (farewell,) = alone.take()
            assert isinstance(farewell, Disconnect)
            assert farewell.reason_code == ReasonCode.PROTOCOL_ERROR
            break
        assert alone.take() == expected(answer, packet_id)
    assert bool(alone.session.inflight.messages) is (state is not Sending.UNUSED)
    if comes_back:
        check_what_is_repeated(alone, packet_id, state)


def check_what_is_repeated(alone: Alone, packet_id: int, state: Sending | Receiving) -> None:
    """[MQTT-4.4.0-1] PUBLISH or PUBREL, whichever is not acknowledged."""
    alone.open()
    repeated = alone.take()[1:]
    if state is Sending.UNUSED:
        assert repeated == []
    elif state is Sending.RELEASED:
        assert repeated == [Pubrel(packet_id)]
    else:
        (message,) = repeated
        assert isinstance(message, Publish)
        assert (message.dup, message.packet_id) == (True, packet_id)


@given(
    expiries,
    st.lists(st.sampled_from([Event.PUBLISH, Event.PUBREL, Event.COMMITTED]), max_size=8),
)
def test_a_qos_2_message_of_the_client_goes_through_its_table(
    expiry_s: int, events: list[Event]
) -> None:
    alone = Alone(expiry_s=expiry_s)
    alone.open()
    alone.take()
    state: Sending | Receiving = Receiving.UNUSED
    routed_count = 0
    for event in events:
        assert isinstance(state, Receiving)
        if event is Event.COMMITTED:
            if state is not Receiving.IN_PROCESS:
                continue
            alone.commits.commit()
        elif event is Event.PUBLISH:
            alone.routes.answers = [IN_PROCESS]
            routed_count += state is Receiving.UNUSED
            alone.send(Publish("t", b"x", 2, packet_id=7))
        else:
            alone.send(Pubrel(7))
            if state is Receiving.KNOWN:
                alone.commits.commit()
        answer, state = RECEIVED[state, event]
        assert received_state(alone.session.inbound_ids, 7) is state
        assert len(alone.routes.messages) == routed_count
        if answer is Reply.ENDS:
            (farewell,) = alone.take()
            assert isinstance(farewell, Disconnect)
            return
        assert alone.take() == expected(answer, 7)


def test_what_need_not_be_durable_is_answered_at_once() -> None:
    """Both steps of the table in one: PUBREC follows the PUBLISH."""
    alone = Alone()
    alone.open()
    alone.take()
    alone.send(Publish("t", b"x", 2, packet_id=7), Publish("t", b"y", 1, packet_id=8))
    assert alone.take() == [Pubrec(7), Puback(8)]
    assert received_state(alone.session.inbound_ids, 7) is Receiving.KNOWN


def test_a_refused_publish_leaves_no_identifier_behind() -> None:
    alone = Alone()
    alone.open()
    alone.take()
    alone.routes.answers = [ReasonCode.QUOTA_EXCEEDED]
    alone.send(Publish("t", b"x", 2, packet_id=7))
    assert alone.take() == [Pubrec(7, ReasonCode.QUOTA_EXCEEDED)]
    assert received_state(alone.session.inbound_ids, 7) is Receiving.UNUSED
    assert alone.session.account.size_bytes == 0
