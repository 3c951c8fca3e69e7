"""The work of one packet is done in pieces of a known size, with the same result.

Work is counted in filters, and in events between two pieces; no time is measured.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback, Suback, Subscribe, Unsubscribe
from flowguard.errors import ProtocolViolation
from flowguard.node.connect.authentication import Hooks
from flowguard.session.chores import FILTERS_PIECE
from flowguard.types import MQTT_5, Publish, ReasonCode, SubscriptionOptions
from tests.support.stage import Client, Stage

SETTINGS = {"node": {"subscriptions_max": 100_000}}
counts = st.one_of(
    st.integers(1, 3 * FILTERS_PIECE + 1),
    st.sampled_from([FILTERS_PIECE, FILTERS_PIECE + 1, 2 * FILTERS_PIECE]),
)


def names(count: int, shared: bool) -> list[str]:
    return [f"$share/g{number}/t" if shared else f"f/{number}" for number in range(count)]


def subscribe(packet_id: int, filters: list[str], qos: int = 1) -> Subscribe:
    options = SubscriptionOptions(qos)
    return Subscribe(packet_id, tuple((filter, options) for filter in filters))


class Pieces:
    """Goes on with the chores of a stage, and sees how much of the table each piece changed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        stage.hold_chores = True

    def largest(self) -> int:
        """Until there are none; subscriptions that came or went with one piece, at most."""
        node = self.stage.node
        largest = 0
        for _ in range(1_000):
            if not len(node.state.chores):
                return largest
            before = len(node.router.table)
            node.state.chores.step(self.stage.now_s)
            largest = max(largest, abs(len(node.router.table) - before))
            self.stage.settle()
        raise AssertionError("it does not end")


def changed_at_once(stage: Stage, client: Client, *packets: Any) -> int:
    """Return the number of subscriptions made or removed before any chore goes on."""
    before = len(stage.node.router.table)
    client.send(*packets)
    return abs(len(stage.node.router.table) - before)


@settings(max_examples=settings.default.max_examples // 2)
@given(count=counts, shared=st.booleans(), durable=st.booleans())
def test_filters_come_and_go_a_piece_at_a_time(count: int, shared: bool, durable: bool) -> None:
    stage = Stage(SETTINGS)
    client = stage.connect_durable("c") if durable else stage.connect("c")
    pieces = Pieces(stage)
    filters = names(count, shared)
    assert changed_at_once(stage, client, subscribe(1, filters)) <= FILTERS_PIECE
    assert pieces.largest() <= FILTERS_PIECE
    assert client.expect(Suback).reason_codes == (1,) * count
    assert len(stage.node.router.table) == count
    assert changed_at_once(stage, client, Unsubscribe(2, tuple(filters))) <= FILTERS_PIECE
    assert pieces.largest() <= FILTERS_PIECE
    assert not len(stage.node.router.table)
    assert not stage.node.guard.window.in_process


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 2)
@given(
    count=counts, shared=st.booleans(), end=st.sampled_from(["leaves", "starts anew", "expires"])
)
def test_a_session_with_many_filters_ends_a_piece_at_a_time(
    count: int, shared: bool, end: str
) -> None:
    stage = Stage(SETTINGS)
    client = stage.connect_durable("c", session_expiry_interval=60)
    client.send(subscribe(1, names(count, shared)))
    pieces = Pieces(stage)
    if end == "leaves":
        client.disconnect(session_expiry_interval=0)
    elif end == "starts anew":
        stage.connect("c")
    else:
        client.close()
        stage.advance(61)
    left = len(stage.node.router.table)
    assert left == 0 or left >= count - FILTERS_PIECE
    # There is no subscriber, and nothing is kept for one.
    publisher = stage.connect("p")
    publisher.publish("t", b"lost", qos=1)
    publisher.publish("f/0", b"lost", qos=1)
    assert [publisher.expect(Puback).packet_id for _ in range(2)] == [1, 2]
    assert pieces.largest() <= FILTERS_PIECE
    assert not stage.node.state.queue_budget.used_bytes
    assert not len(stage.node.router.table)
    stage.hold_chores = False
    stage.restart()
    assert not len(stage.node.router.table)


def test_who_comes_back_before_its_last_session_has_left_the_table_loses_nothing() -> None:
    stage = Stage(SETTINGS)
    count = 3 * FILTERS_PIECE
    client = stage.connect_durable("c")
    client.send(subscribe(1, names(count, shared=True)))
    pieces = Pieces(stage)
    again = stage.connect("c", session_expiry_interval=60)
    again.subscribe("$share/g0/t", f"$share/g{count - 1}/t", "t", qos=1)
    stage.connect("p").publish("t", b"for the new one", qos=1)
    assert len(again.publishes()) == 3
    pieces.largest()
    stage.connect("q").publish("t", b"and another", qos=1)
    assert len(again.publishes()) == 3
    again.close()
    stage.connect("r").publish("t", b"while it is away", qos=1)
    stage.hold_chores = False
    stage.restart()
    assert len(stage.connect_durable("c").publishes()) == 3


def test_what_follows_a_large_subscribe_keeps_its_place_behind_it() -> None:
    stage = Stage(SETTINGS)
    client = stage.connect("c")
    pieces = Pieces(stage)
    filters = names(2 * FILTERS_PIECE, shared=False)
    client.send(
        subscribe(1, filters),
        Unsubscribe(2, (filters[-1],)),
        Publish(filters[-2], b"to itself", 1, packet_id=3),
        Publish(filters[-1], b"to nobody", 1, packet_id=4),
    )
    assert not client.inbox
    pieces.largest()
    kinds = [type(packet).__name__ for packet in client.take()]
    assert kinds == ["Suback", "Unsuback", "Publish", "Puback", "Puback"]
    assert not stage.node.guard.window.in_process


def test_others_are_served_between_the_pieces() -> None:
    stage = Stage(SETTINGS)
    client, other = stage.connect("c"), stage.connect("other")
    other.subscribe("t")
    Pieces(stage)
    client.send(subscribe(1, names(2 * FILTERS_PIECE, shared=False)))
    stage.node.state.chores.step(stage.now_s)
    other.publish("t", b"x", qos=1)
    assert other.expect(Puback)
    assert other.publishes()
    assert len(stage.node.state.chores) == 1
    client.send_bytes(b"\xc0\x00")  # PINGREQ
    assert client.raw.endswith(b"\xd0\x00")


@pytest.mark.parametrize("end", ["close", "take-over"])
def test_a_large_subscribe_ends_with_its_connection(end: str) -> None:
    stage = Stage(SETTINGS)
    client = stage.connect_durable("c")
    pieces = Pieces(stage)
    client.send(subscribe(1, names(3 * FILTERS_PIECE, shared=True)))
    stage.node.state.chores.step(stage.now_s)
    if end == "close":
        client.close()
    else:
        stage.connect_durable("c")
    session = stage.node.registry.sessions["c"]
    done = len(session.subscriptions)
    assert 0 < done < 3 * FILTERS_PIECE
    pieces.largest()
    assert len(session.subscriptions) == done
    assert not stage.node.guard.window.in_process
    stage.hold_chores = False
    stage.restart()
    assert len(stage.node.registry.sessions["c"].subscriptions) == done


def test_it_waits_until_its_client_has_nothing_else_in_process() -> None:
    stage = Stage(SETTINGS)
    client = stage.connect_durable("c")
    stage.hold_commits = True
    client.send(
        Publish("t", b"x", 2, packet_id=1), subscribe(2, names(FILTERS_PIECE + 1, shared=False))
    )
    assert not len(stage.node.state.chores)
    assert not len(stage.node.router.table)
    stage.release_commits()
    assert len(client.expect(Suback).reason_codes) == FILTERS_PIECE + 1


def test_a_window_that_grows_meanwhile_lets_nothing_pass() -> None:
    stage = Stage(SETTINGS)
    client = stage.connect("c")
    pieces = Pieces(stage)
    stage.node.guard.window.resize(1)
    client.send(subscribe(1, names(2 * FILTERS_PIECE, shared=False)), Unsubscribe(2, ("f/0",)))
    stage.node.guard.window.resize(stage.node.guard.window.limit_max)
    client.send(Unsubscribe(3, ("f/1",)))
    assert not client.inbox
    pieces.largest()
    assert [packet.packet_id for packet in client.take()] == [1, 2, 3]  # type: ignore[union-attr]


class Moody:
    """Breaks, or finds the client broken, at one filter."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def may_publish(self, client_id: str, topic: str) -> bool:
        return True

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        if filter == f"f/{FILTERS_PIECE + 1}":
            raise self.error
        return True


def test_what_breaks_in_a_piece_ends_the_connection_and_nothing_else() -> None:
    stage = Stage(SETTINGS, hooks=Hooks(authorizer=Moody(ProtocolViolation("no such filter"))))
    client = stage.connect("c")
    client.send(subscribe(1, names(3 * FILTERS_PIECE, shared=False)))
    assert client.is_closed
    assert client.take()[-1].reason_code == ReasonCode.PROTOCOL_ERROR  # type: ignore[union-attr]
    assert not len(stage.node.state.chores)
    assert not stage.node.guard.window.in_process
    assert not len(stage.node.router.table)


def test_who_comes_back_hears_from_all_of_many_groups() -> None:
    stage = Stage(SETTINGS)
    count = 3 * FILTERS_PIECE
    client = stage.connect_durable("c")
    client.send(subscribe(1, names(count, shared=True)))
    client.close()
    stage.connect("p").publish("t", b"x", qos=1)
    pieces = Pieces(stage)
    back = stage.connect_durable("c")
    assert len(back.publishes()) <= FILTERS_PIECE
    pieces.largest()
    stage.hold_chores = False
    stage.settle()
    received = 0
    while more := len(back.publishes()):
        received += more
    assert stage.node.state.queue_budget.used_bytes == 0


def test_retained_messages_of_many_filters_are_asked_for_once_a_turn() -> None:
    stage = Stage(SETTINGS)
    count = 3 * FILTERS_PIECE
    publisher = stage.connect("p")
    for number in range(0, count, 7):
        publisher.publish(f"f/{number}", b"kept", retain=True)
    client = stage.connect("c")
    client.send(subscribe(1, names(count, shared=False)))
    assert len(client.publishes()) == len(range(0, count, 7))


def flush(stage: Stage) -> int:
    """One slice of the loop: what there is to say is sent; how often a socket's turn came."""
    count = len(stage.node.state.dirty)
    stage.turns.end_slice(stage.now_s)
    return count


@pytest.mark.parametrize("filters", [["r/#"], [f"r/{number}/+" for number in range(100)]])
def test_who_is_sent_retained_messages_has_one_turn_in_each_slice(filters: list[str]) -> None:
    stage = Stage(SETTINGS)
    for number in range(3_000):
        message = Publish(f"r/{number % 100}/{number}", b"kept", 0, True)
        stage.node.router.retained.put(message, float("inf"))
    client = stage.connect("c")
    flush(stage)
    packet = subscribe(1, filters, qos=0)
    client.connection.receive_data(encode(packet, MQTT_5), stage.now_s)
    before = stage.node.counters.publish_sent
    while stage.node.counters.publish_sent - before < 3_000:
        assert flush(stage) == 1
