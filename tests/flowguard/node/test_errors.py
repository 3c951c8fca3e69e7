"""Broken packets on an open connection: the answers, and that other clients do not notice."""

import pytest

from flowguard.codec.packets import Pingreq, Pingresp, Will
from tests.support.stage import Stage


@pytest.mark.spec("MQTT-4.13.1-1", "v3:MQTT-4.8.0-1")
def test_only_the_connection_that_broke_the_rules_is_closed(version: int) -> None:
    stage = Stage()
    other = stage.connect("other", version=version)
    other.subscribe("will", qos=1)
    culprit = stage.connect("culprit", version=version, will=Will("will", b"gone", 1))
    culprit.send_bytes(b"\x00\x00")
    assert not other.is_closed
    assert [message.payload for message in other.publishes()] == [b"gone"]
    other.send(Pingreq())
    assert other.take() == [Pingresp()]
