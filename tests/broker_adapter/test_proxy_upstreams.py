"""Several upstreams behind a proxy, on virtual time: health, least pressure, paced return."""

import pytest

from broker_adapter.proxy.core import PROBE_S
from broker_adapter.proxy.states import PairState
from broker_adapter.proxy.upstream import DIAL_S
from flowguard.codec.packets import Connack, Connect
from flowguard.config import FlowSettings
from flowguard.types import MQTT_5, Publish
from tests.broker_adapter.proxy_stage import ProxyStage


def test_calm_upstreams_share_their_clients() -> None:
    stage = ProxyStage(upstreams=3)
    for _ in range(9):
        stage.connect()
    assert [upstream.pairs_count for upstream in stage.upstreams] == [3, 3, 3]


def test_whoever_comes_goes_where_the_least_pressure_is() -> None:
    stage = ProxyStage(upstreams=2)
    stage.connect().send(Publish("a", b"x", 1, packet_id=1))
    slow, quick = stage.upstreams
    stage.connect()
    assert (slow.pairs_count, quick.pairs_count) == (1, 1)
    stage.advance(1.0)  # The packet is still not acknowledged.
    for _ in range(3):
        stage.connect()
    assert (slow.pairs_count, quick.pairs_count) == (1, 4)


def test_who_is_refused_for_being_busy_is_left_alone_for_a_while() -> None:
    stage = ProxyStage(upstreams=2)
    refused = stage.open()
    refused.send(Connect("", MQTT_5))
    busy = refused.pair.broker
    refused.answer(Connack(False, 0x89))
    for _ in range(3):
        assert stage.connect().pair.broker is not busy
    stage.advance(2.0)
    refused.hang_up()
    assert stage.connect().pair.broker is busy


def test_where_one_is_gone_its_clients_find_the_others_at_once() -> None:
    stage = ProxyStage(upstreams=2)
    for _ in range(4):
        stage.connect()
    gone, there = stage.upstreams
    stage.fall_alone(gone)
    assert (gone.pairs_count, there.pairs_count) == (0, 2)
    for _ in range(4):
        stage.connect()
    assert not gone.is_up
    assert stage.core.is_up
    assert (gone.pairs_count, there.pairs_count) == (0, 6)


def test_one_that_is_gone_is_tried_now_and_then_by_one_who_goes_elsewhere() -> None:
    stage = ProxyStage(upstreams=2)
    gone, there = stage.upstreams
    stage.fall_alone(gone)
    stage.connect()
    for _ in range(10):
        before = stage.dials
        stage.connect()
        assert stage.dials == before + 1, "it is not asked before its time"
    stage.advance(2 * PROBE_S)
    before = stage.dials
    assert stage.connect().pair.broker is there
    assert stage.dials == before + 2
    stage.fallen.clear()
    stage.advance(2 * PROBE_S)
    assert stage.connect().pair.broker is gone
    assert gone.is_up


def test_a_dial_that_takes_too_long_goes_elsewhere() -> None:
    stage = ProxyStage(upstreams=2)
    stage.in_slice = True  # No dial yet.
    client = stage.open()
    client.send(Connect("", MQTT_5))
    silent = client.pair.broker
    stage.core.to_dial.clear()  # The SYNs are lost.
    stage.in_slice = False
    stage.advance(DIAL_S + 0.2)
    assert client.pair.state is PairState.CONNECTING
    assert client.pair.broker is not silent
    assert silent is not None
    assert not silent.is_up


def test_addresses_of_one_upstream_are_tried_in_order_and_the_one_that_answers_first() -> None:
    stage = ProxyStage(addresses=3)
    (upstream,) = stage.upstreams
    first, second, third = upstream.places
    stage.silent = {first}
    stage.connect()
    assert stage.dialed == [first, second]
    stage.connect()
    assert stage.dialed[2:] == [second], "the one that answered last"
    stage.silent = {first, second}
    stage.connect()
    assert stage.dialed[3:] == [second, third]
    assert upstream.is_up
    assert upstream.pairs_count == 3


def test_an_upstream_is_gone_where_none_of_its_addresses_answers() -> None:
    stage = ProxyStage(upstreams=2, addresses=2)
    gone, there = stage.upstreams
    stage.silent = set(gone.places)
    assert stage.connect().pair.broker is there
    assert stage.dialed == [*gone.places, there.places[0]]
    assert not gone.is_up


def test_an_address_that_takes_too_long_is_followed_by_the_next_one() -> None:
    stage = ProxyStage(addresses=2)
    stage.in_slice = True  # No dial yet.
    client = stage.open()
    client.send(Connect("", MQTT_5))
    stage.core.to_dial.clear()  # The SYNs are lost.
    stage.in_slice = False
    stage.advance(DIAL_S + 0.2)
    assert client.pair.state is PairState.CONNECTING
    assert stage.dialed == [stage.upstreams[0].places[1]]
    assert stage.upstreams[0].is_up


@pytest.mark.parametrize("addresses", [1, 2, 4, 8])
def test_an_upstream_whose_addresses_are_silent_is_left_as_soon_as_any(addresses: int) -> None:
    stage = ProxyStage(upstreams=2, addresses=addresses)
    silent, there = stage.upstreams
    stage.lost = set(silent.places)
    client = stage.open()
    client.send(Connect("", MQTT_5))
    assert client.pair.broker is silent
    stage.advance(DIAL_S + 0.2)
    assert client.pair.broker is there
    assert client.pair.state is PairState.CONNECTING
    assert not silent.is_up
    assert len(set(stage.dialed) & stage.lost) == min(addresses, DIAL_S)


def test_addresses_for_which_there_was_no_time_are_the_first_of_the_next_dial() -> None:
    stage = ProxyStage(addresses=9)
    (upstream,) = stage.upstreams
    stage.lost = set(upstream.places[:7])
    client = stage.open()
    client.send(Connect("", MQTT_5))
    stage.advance(DIAL_S + 2 * PROBE_S + 3.0)
    assert stage.dialed == list(upstream.places[:8])
    assert client.pair.state is PairState.CONNECTING
    stage.connect()
    assert stage.dialed[8:] == [upstream.places[7]], "it has answered"


def test_when_all_are_gone_clients_wait_and_their_return_is_paced() -> None:
    stage = ProxyStage(FlowSettings(connect_patience_s=30), upstreams=2)
    stage.is_up = False
    clients = []
    for number in range(40):
        client = stage.open(client_id=f"c{number}")
        client.send(Connect(f"c{number}", MQTT_5))
        clients.append(client)
    stage.advance(3.0)
    assert not stage.core.is_up
    assert not any(client.is_dialed or client.pair.ended for client in clients)
    stage.is_up = True
    stage.advance(2 * PROBE_S)
    gate = stage.core.guard.gate
    at_once = sum(client.is_dialed for client in clients)
    assert 0 < at_once <= gate.limit < 40
    for client in clients:  # The upstream answers as they come.
        if not client.is_dialed:
            stage.advance(0.1)
        client.answer(Connack(False, 0))
        assert gate.in_process <= gate.limit
    assert all(client.pair.state is PairState.CONNECTED for client in clients)
    assert all(upstream.pairs_count > 0 for upstream in stage.upstreams)
