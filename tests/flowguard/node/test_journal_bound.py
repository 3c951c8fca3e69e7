"""However many packets come in one slice of the loop, the journal holds what it may hold.

One packet is always possible, so the bound is exceeded by what one packet makes the store do, and
by nothing else.
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback, Subscribe
from flowguard.flow.windows.cost import JOURNALS
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.support.stage import Client, Stage

OPS_MAX = 100
FLOW = {"journal_ops_max": OPS_MAX, "unfinished_max": 20, "window_max": 10}


def crowd(groups: int, publishers: int, flow: dict[str, Any]) -> tuple[Stage, list[Client]]:
    """Return publishers to `groups` queues of one client, with a store that is slow from now on."""
    stage = Stage({"flow": flow})
    stage.connect_durable("groups").subscribe(
        *(f"$share/{number}/t" for number in range(groups)), qos=1
    )
    clients = [stage.connect(f"p{number}") for number in range(publishers)]
    stage.hold_commits = True
    return stage, clients


def send(client: Client, data: bytes) -> None:
    """Bytes of a client in the middle of a slice: no turn of the node begins behind them."""
    client.connection.receive_data(data, client.stage.now_s)


def publishes(count: int) -> bytes:
    packets = [Publish("t", b"x", 1, packet_id=number) for number in range(1, count + 1)]
    return b"".join(encode(packet, MQTT_5) for packet in packets)


@given(
    groups=st.integers(1, 60),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=15),
    flow=st.sampled_from([FLOW, FLOW | {"unfinished_max": 4_096}]),
)
def test_the_journal_exceeds_its_bound_by_one_packet_at_most(
    groups: int, counts: list[int], flow: dict[str, Any]
) -> None:
    stage, clients = crowd(groups, len(counts), flow)
    journal = stage.node.journal
    for client, count in zip(clients, counts, strict=True):
        send(client, publishes(count))
        assert journal.depth < OPS_MAX + groups
    stage.release_commits()
    for client, count in zip(clients, counts, strict=True):
        for _ in range(count):
            client.expect(Puback)
    assert journal.is_empty


@given(counts=st.lists(st.integers(1, 150), min_size=1, max_size=6))
def test_the_journal_keeps_its_bound_where_filters_are_stored(counts: list[int]) -> None:
    stage = Stage({"flow": FLOW})
    clients = [stage.connect_durable(f"c{number}") for number in range(len(counts))]
    stage.hold_commits = True
    for client, count in zip(clients, counts, strict=True):
        filters = tuple((f"f/{number}", SubscriptionOptions(1)) for number in range(count))
        send(client, encode(Subscribe(1, filters), MQTT_5) + encode(Subscribe(2, filters), MQTT_5))
        assert stage.node.journal.depth < OPS_MAX + max(counts)


def test_a_packet_weighs_what_it_makes_the_store_do() -> None:
    stage, (client,) = crowd(60, 1, FLOW)
    send(client, publishes(1))
    unit_ops = OPS_MAX // (JOURNALS * 20)
    assert stage.node.guard.window.in_process == 1 + 60 // unit_ops


def test_a_packet_that_is_more_than_the_journal_is_possible_alone() -> None:
    stage, clients = crowd(3 * OPS_MAX, 3, FLOW)
    for client in clients:
        send(client, publishes(2))
    assert stage.node.journal.depth == 3 * OPS_MAX
    stage.release_commits()
    for client in clients:
        assert [client.expect(Puback).packet_id for _ in range(2)] == [1, 2]


def test_who_asks_for_little_goes_before_those_who_wait_with_much() -> None:
    stage, clients = crowd(60, 6, FLOW)
    polite = clients.pop()
    for client in clients:
        client.send(*(Publish("t", b"much", 1, packet_id=number) for number in range(1, 7)))
    assert all(client.connection.waits for client in clients)
    polite.send(Publish("else", b"little", 1, True, packet_id=1))
    while not polite.inbox:
        assert stage.finish_commit()
    # One before there were turns, and one turn; none had a second one before.
    assert max(len(client.inbox) for client in clients) <= 2
    stage.release_commits()
    for client in clients:
        assert [client.expect(Puback).packet_id for _ in range(6)] == list(range(1, 7))
