"""DISCONNECT and then SIGKILL: once its connection has ended, a client's session does not come
back."""

import signal
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Disconnect, Suback, Subscribe, Will
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, SubscriptionOptions
from tests.interop.broker import Broker, running_broker
from tests.support.caller import Caller

VERSIONS = (MQTT_311, MQTT_5)
KILLED = -signal.SIGKILL
WILL = Will("will", b"nobody's", 1)
LASTING = Properties(session_expiry_interval=3_600)
OVER = Properties(session_expiry_interval=0)
LAST = Publish("will", b"last", 1, packet_id=1)


def come(
    broker: Broker, client_id: str, version: int = MQTT_5, will: Will | None = None
) -> tuple[Caller, Connack]:
    """A client with a session that lasts, and its CONNACK."""
    properties = LASTING if version == MQTT_5 else Properties()
    client = Caller(broker, version, client_id, clean_start=False, will=will, properties=properties)
    connack = client.read()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    return client, connack


def payloads(client: Caller) -> list[bytes]:
    """Return the payloads that it receives, up to the last one."""
    found: list[bytes] = []
    while LAST.payload not in found:
        packet = client.read()
        assert isinstance(packet, Publish)
        found.append(packet.payload)
    return found


@pytest.mark.slow
@pytest.mark.spec("MQTT-3.14.4-3", "v3:MQTT-3.14.4-3")
def test_nothing_of_who_has_left_in_good_order_is_back_after_a_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path, exit_code=KILLED) as broker:
        watcher, _ = come(broker, "watcher")
        watcher.send(Subscribe(1, (("will", SubscriptionOptions(1)),)))
        assert isinstance(watcher.read(), Suback)
        leaving = [come(broker, f"c{version}", version, WILL)[0] for version in VERSIONS]
        ending, _ = come(broker, "over")
        for client in leaving:
            client.send(Disconnect())
        ending.send(Disconnect(properties=OVER))
        for client in (*leaving, ending):
            assert client.read() is None
        broker.process.kill()
        broker.process.wait()
    for client in (*leaving, ending, watcher):
        client.close()
    with running_broker(tmp_path) as broker:
        again, connack = come(broker, "over")
        assert not connack.session_present
        watcher, connack = come(broker, "watcher")
        assert connack.session_present
        again.send(LAST)
        assert payloads(watcher) == [LAST.payload]
        watcher.close()
        again.close()
