"""Clients that stop sending or reading, on virtual time, and the fate of their pairs."""

import pytest

from broker_adapter.proxy.states import PairState
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
)
from flowguard.config import FlowSettings
from flowguard.types import MQTT_5, Publish
from tests.broker_adapter.proxy_stage import ProxyClient, ProxyStage

TIMEOUT_S = FlowSettings().connect_timeout_s
MESSAGE = Publish("a", b"x", 1, packet_id=1)


def leave_early(stage: ProxyStage, *, hears: bool = True) -> ProxyClient:
    """A client that says everything at once, and sends no more."""
    client = stage.open(client_id="early")
    client.send(Connect("early", MQTT_5), MESSAGE, Disconnect())
    client.hang_up(hears=hears)
    return client


def nothing_is_left_of_it(stage: ProxyStage) -> bool:
    core = stage.core
    return not (
        core.pairs or core.held_bytes or core.in_process_count or core.guard.gate.in_process
    )


@pytest.mark.parametrize("hears", [True, False])
def test_who_leaves_before_its_connack_is_forwarded_all_the_same(hears: bool) -> None:
    stage = ProxyStage()
    client = leave_early(stage, hears=hears)
    assert [type(packet) for packet in client.packets_at_upstream()] == [Connect]
    client.answer(Connack(False, 0))
    assert [type(packet) for packet in client.packets_at_upstream()] == [
        Connect,
        Publish,
        Disconnect,
    ]
    client.answer(Puback(1))
    client.upstream_ends()
    assert client.packets_got() == ([Connack(False, 0), Puback(1)] if hears else [])
    assert nothing_is_left_of_it(stage)


def test_the_upstream_is_told_the_end_and_what_it_answers_still_passes() -> None:
    stage = ProxyStage()
    client = stage.connect()
    client.send(MESSAGE)
    client.hang_up()
    assert client.end_passed
    client.answer(Puback(1))
    assert client.packets_got() == [Connack(False, 0), Puback(1)]
    assert not client.pair.ended
    client.upstream_ends()
    assert nothing_is_left_of_it(stage)


def test_who_has_left_with_nothing_but_its_connect_gets_no_place() -> None:
    stage = ProxyStage(FlowSettings(connects_in_process_max=1))
    first = stage.open()
    first.send(Connect("first", MQTT_5))
    waiting = [stage.open(client_id=f"c{number}") for number in range(3)]
    for client in waiting:
        client.send(Connect(client.client_id, MQTT_5))
    alone, half, whole = waiting
    message = encode(MESSAGE, MQTT_5)
    half.send_bytes(message[:-1])
    whole.send_bytes(message)
    assert stage.core.guard.gate.buffered == 3
    for client in waiting:
        client.hang_up()
    assert alone.pair.ended
    assert half.pair.ended
    assert stage.core.guard.gate.buffered == 1
    first.answer(Connack(False, 0))
    assert not alone.is_dialed
    assert not half.is_dialed
    whole.answer(Connack(False, 0))
    assert whole.packets_at_upstream()[1:] == [MESSAGE]


@pytest.mark.parametrize("last", [Disconnect(), Pingreq()])
def test_who_takes_its_leave_with_no_work_behind_its_connect_gets_no_place(last: Packet) -> None:
    stage = ProxyStage(FlowSettings(connects_in_process_max=1))
    stage.open().send(Connect("first", MQTT_5))
    waiting, working = stage.open(client_id="waiting"), stage.open(client_id="working")
    waiting.send(Connect("waiting", MQTT_5), last)
    working.send(Connect("working", MQTT_5), last, MESSAGE)
    waiting.hang_up()
    working.hang_up()
    assert waiting.pair.ended
    assert not working.pair.ended
    assert stage.core.guard.gate.buffered == 1


@pytest.mark.parametrize("last", [Disconnect(), Pingreq()])
def test_a_disconnect_follows_its_connect_to_the_upstream(last: Packet) -> None:
    """Without it the upstream would publish a will."""
    stage = ProxyStage()
    client = stage.open(client_id="polite")
    client.send(Connect("polite", MQTT_5), last)
    client.hang_up()
    client.answer(Connack(False, 0))
    is_work = isinstance(last, Disconnect)
    assert client.packets_at_upstream()[1:] == ([last] if is_work else [])
    assert client.pair.ended is not is_work


def test_who_hears_no_more_is_forwarded_beyond_its_window() -> None:
    stage = ProxyStage(FlowSettings(window_max=1))
    client = stage.connect()
    messages = [Publish("a", b"x", 1, packet_id=number) for number in (1, 2, 3)]
    client.send(*messages)
    client.hang_up(hears=False)
    client.answer(Puback(1))
    assert client.pair.is_deaf
    client.answer(Puback(2))
    assert client.packets_at_upstream()[1:] == messages
    assert client.pair.ended
    assert nothing_is_left_of_it(stage)


def test_who_is_found_to_hear_nothing_is_read_to_its_end() -> None:
    stage = ProxyStage()
    client = stage.connect()
    client.hears = False
    client.answer(Publish("to/you", b"y"))
    assert client.pair.wants_client
    client.send(MESSAGE)
    client.hang_up(hears=False)
    assert client.packets_at_upstream()[1:] == [MESSAGE]
    assert nothing_is_left_of_it(stage)


def test_an_upstream_that_cannot_be_half_closed_is_closed_after_the_last_acknowledgement() -> None:
    stage = ProxyStage(half_closes=False)
    client = stage.connect()
    client.send(MESSAGE)
    client.hang_up()
    assert not client.pair.ended
    client.answer(Puback(1))
    assert client.pair.ended
    assert client.packets_got() == [Connack(False, 0), Puback(1)]
    assert nothing_is_left_of_it(stage)


TWICE = (MESSAGE, MESSAGE)
PIPELINED = (Publish("a", b"x", 2, packet_id=1), Pubrel(1))


@pytest.mark.parametrize(
    ("packets", "answers"),
    [(TWICE, (Puback(1), Puback(1))), (PIPELINED, (Pubrec(1), Pubcomp(1)))],
)
def test_every_acknowledgement_is_awaited_of_an_upstream_that_cannot_be_half_closed(
    packets: tuple[Packet, ...], answers: tuple[Packet, ...]
) -> None:
    stage = ProxyStage(half_closes=False)
    client = stage.connect()
    client.send(*packets)
    client.hang_up()
    data = b"".join(encode(packet, MQTT_5) for packet in answers)
    for at in range(len(data)):
        assert not client.pair.ended
        client.answer_bytes(data[at : at + 1])
    assert client.pair.ended
    assert client.packets_got()[1:] == list(answers)
    assert nothing_is_left_of_it(stage)


@pytest.mark.parametrize("window_max", [1, 2])
def test_a_packet_that_will_never_be_whole_is_not_waited_for(window_max: int) -> None:
    """The packet fits into the window, or waits when its client ends."""
    stage = ProxyStage(FlowSettings(window_max=window_max), half_closes=False)
    client = stage.connect()
    client.send(MESSAGE)
    client.send_bytes(encode(Publish("a", b"x" * 50, 1, packet_id=2), MQTT_5)[:-5])
    client.hang_up()
    assert client.packets_at_upstream()[1:] == [MESSAGE]
    client.answer(Puback(1))
    assert client.pair.ended
    assert client.packets_got()[1:] == [Puback(1)]
    assert nothing_is_left_of_it(stage)


@pytest.mark.parametrize("upstream_says", ["nothing", "connack", "all", "no more is taken"])
def test_who_leaves_is_held_no_longer_than_something_moves(upstream_says: str) -> None:
    stage = ProxyStage()
    client = leave_early(stage)
    if upstream_says != "nothing":
        stage.advance(TIMEOUT_S - 1)
        stage.takes = upstream_says != "no more is taken"
        client.answer(Connack(False, 0))
    if upstream_says == "all":
        stage.advance(TIMEOUT_S - 1)
        client.answer(Puback(1))
    stage.advance(TIMEOUT_S - 1)
    assert not client.pair.ended
    stage.advance(1.2)
    assert client.pair.ended
    stage.drain_upstream()
    assert nothing_is_left_of_it(stage)


def test_who_leaves_and_takes_nothing_is_not_held_for_what_it_was_sent() -> None:
    stage = ProxyStage()
    client = stage.connect()
    client.send(MESSAGE)
    client.hang_up()
    stage.takes_client = False
    while client.pair.wants_upstream:
        client.answer(Publish("to/you", b"z" * 60_000))
    stage.advance(TIMEOUT_S + 0.2)
    assert client.pair.ended
    stage.drain_upstream()
    assert nothing_is_left_of_it(stage)


def test_who_hears_no_more_is_not_held_for_what_nobody_hears() -> None:
    stage = ProxyStage(FlowSettings(window_max=1))
    client = stage.connect()
    client.send(MESSAGE, Publish("a", b"x", 1, packet_id=2), Publish("a", b"x", 1, packet_id=3))
    client.hang_up(hears=False)

    def talk(seconds: float) -> None:
        """The upstream says much, and acknowledges nothing."""
        for _ in range(round(seconds)):
            client.answer(Publish("to/you", b"y"))
            stage.advance(1.0)

    talk(TIMEOUT_S - 1)
    client.answer(Puback(1))
    talk(TIMEOUT_S - 1)
    assert not client.pair.ended, "an acknowledgement is progress"
    talk(2)
    assert client.pair.ended
    assert nothing_is_left_of_it(stage)


def test_whose_connect_waits_has_the_patience_of_all_others() -> None:
    """Longer than a pair of an upstream is held without progress, and then 136."""
    stage = ProxyStage(FlowSettings(connect_patience_s=2 * TIMEOUT_S))
    stage.is_up = False
    served = leave_early(stage)
    stage.advance(1.5 * TIMEOUT_S)
    assert not served.pair.ended
    stage.is_up = True
    stage.advance(1.0)
    assert served.pair.state is PairState.CONNECTING
    stage.fall()
    late = leave_early(stage)
    stage.advance(2 * TIMEOUT_S + 0.2)
    (connack,) = late.packets_got()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 136
    assert nothing_is_left_of_it(stage)
