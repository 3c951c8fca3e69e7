"""Every message that is not delivered is counted with its reason, even if no client learns of
it."""

import pytest

from flowguard.codec.packets import Puback
from flowguard.flow import Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.types import ReasonCode
from tests.support.stage import Stage


class Nothing:
    """Forbids all clients to publish."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return False

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return True


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
