"""The admission window: packets of a client that may be in process at once."""

import pytest

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Pingreq,
    Pingresp,
    Subscribe,
    Unsubscribe,
)
from flowguard.session.inbound.packets import RUN_MAX
from flowguard.types import Publish, SubscriptionOptions
from tests.support.readings import identifiers, in_process
from tests.support.sendings import numbered_publishes
from tests.support.stage import Client, Stage


def slow_store(stage: Stage, window: int) -> Client:
    """A publisher whose messages must be durable, in a node with this window and a slow store."""
    stage.connect_durable("s").subscribe("a", qos=2)
    publisher = stage.connect("p", version=4)
    stage.node.guard.window.resize(window)
    stage.hold_commits = True
    return publisher


def test_a_run_ends_after_so_many_packets_and_the_rest_has_another_turn() -> None:
    stage = Stage()
    publisher = slow_store(stage, 100)
    connection, received = publisher.connection, []
    connection.receive_data(
        b"".join(encode(packet, 4) for packet in numbered_publishes(40)), stage.now_s
    )
    while connection.queued:
        received.append(stage.node.counters.publish_received)
        assert stage.turns.run_round()
    assert received == [RUN_MAX, 2 * RUN_MAX]
    assert stage.node.counters.publish_received == 40


def test_each_commit_lets_as_many_in_as_it_finished() -> None:
    stage = Stage()
    publisher = slow_store(stage, 3)
    publisher.send(*numbered_publishes(8))
    seen = []
    for _ in range(4):
        assert stage.held is not None
        stage.finish_commit()
        seen.append(identifiers(publisher.take()))
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8], []]


def test_subscribe_and_unsubscribe_count_as_well(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    stage.node.guard.window.resize(2)
    stage.hold_commits = True
    client.send(
        Subscribe(1, (("a", SubscriptionOptions()),)),
        Unsubscribe(2, ("a",)),
        Subscribe(3, (("b", SubscriptionOptions()),)),
    )
    assert in_process(client) == 2
    assert len(stage.node.router.table) == 0
    stage.release_commits()
    assert identifiers(client.take()) == [1, 2, 3]
    assert len(stage.node.router.table) == 1


@pytest.mark.parametrize("limit", [{"journal_ops_max": 3}, {"journal_bytes_max": 1_000}])
def test_a_full_journal_pauses_everybody_and_lets_all_go_on(limit: dict[str, int]) -> None:
    stage = Stage({"flow": limit})
    stage.connect_durable("s").subscribe("a", qos=2)
    first, second = (stage.connect(name, version=4) for name in ("first", "second"))
    stage.hold_commits = True
    for number in range(1, 7):
        first.send(Publish("a", b"%d" % number, 1, packet_id=number))
    assert stage.node.journal.is_full
    taken = stage.node.counters.publish_received
    assert 3 <= taken < 6
    second.send(Publish("b", b"x", 1, packet_id=1), Pingreq())
    assert second.take() == [Pingresp()]
    assert stage.node.counters.publish_received == taken
    stage.release_commits()
    assert identifiers(first.take()) == [1, 2, 3, 4, 5, 6]
    assert identifiers(second.take()) == [1]
    assert not stage.node.journal.is_full
