"""Whatever is not delivered is counted with its reason, whoever can be told of it."""

from typing import Any

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.node.authentication import Hooks
from flowguard.records import QueueEntry
from flowguard.types import ReasonCode
from tests.support.stage import Stage, StoreOnDisk


class Nothing:
    """Nobody may publish anything."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return False

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


class Forgetful(StoreOnDisk):
    """A store that has lost what waits in it, and says that nothing is there."""

    has_lost = False

    def fetch(self, client_id: str, after_pos: int, limit: int, **options: Any) -> list[QueueEntry]:
        return [] if self.has_lost else super().fetch(client_id, after_pos, limit, **options)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic", ["$SYS/broker", "a/b/c/d"])
def test_a_message_to_a_topic_that_is_refused(version: int, qos: int, topic: str) -> None:
    stage = Stage({"session": {"topic_levels_max": 3}})
    client = stage.connect("c", version=version)
    client.publish(topic, b"x", qos=qos)
    assert stage.node.counters.dropped == {Reason.TOPIC_REFUSED: 1}
    assert len(client.take()) == qos


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_is_not_allowed(version: int, qos: int) -> None:
    stage = Stage(hooks=Hooks(authorizer=Nothing()))
    client = stage.connect("c", version=version)
    client.publish("t", b"x", qos=qos)
    assert stage.node.counters.dropped == {Reason.NOT_AUTHORIZED: 1}
    if qos and version == 5:
        assert client.expect(Puback).reason_code == ReasonCode.NOT_AUTHORIZED


def test_what_the_store_has_lost(version: int) -> None:
    store = Forgetful()
    stage = Stage(store=store)
    stage.connect_durable("d", version=version).subscribe("t", qos=1)
    stage.node.registry.sessions["d"].outbound.connection.receive_eof(stage.now_s)  # type: ignore[union-attr]
    stage.settle()
    publisher = stage.connect("p", version=version)
    for _ in range(3):
        publisher.publish("t", b"x", qos=1)
    store.has_lost = True
    reader = stage.connect_durable("d", version=version)
    assert not reader.publishes()
    assert stage.node.counters.dropped == {Reason.MESSAGE_LOST: 3}
    assert not stage.node.registry.sessions["d"].queue.waits
    assert stage.node.disk_queue_budget.used_bytes == 0
