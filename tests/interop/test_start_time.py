"""Subscribing into the past: it begins there, goes on after a resume, and nothing comes twice."""

import time
import uuid
from collections.abc import Iterator

import pytest

from tests.interop.broker import Broker, running_broker
from tests.interop.clients import every_peer_with_5
from tests.interop.peer import Message, Peer, Subscription

pytestmark = pytest.mark.peers

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """It logs what any durable subscriber wants. Several workers reject a start time."""
    log = {"FLOWGUARD_SESSION__LOG_THRESHOLD": "1"}
    folder = tmp_path_factory.mktemp("log") / "data"
    with running_broker(folder, "--workers", "1", environment=log) as running:
        yield running


def named() -> dict[str, object]:
    return {"client_id": uuid.uuid4().hex[:16], "clean": False, "expiry_s": 300}


@pytest.mark.parametrize(("qos", "end"), [(1, "cut"), (2, "disconnect")])
@every_peer_with_5
def test_from_a_time_on_and_after_a_resume(peer: Peer, topic: str, qos: int, end: str) -> None:
    peer.open(Subscription(topic, qos), **named()).disconnect()  # A durable subscriber.
    sent = [Message(topic, b"%d" % number, qos) for number in range(60)]
    publisher = peer.open()
    publisher.publish(*sent[:10])
    time.sleep(0.01)  # start-time has a resolution of a millisecond.
    since_ms = int(time.time() * 1_000)
    publisher.publish(*sent[10:40])
    mine = named()
    first = peer.open(Subscription(topic, qos, start_time=since_ms), **mine)
    assert [first.receive() for _ in range(30)] == sent[10:40]
    publisher.publish(*sent[40:50])
    assert [first.receive() for _ in range(10)] == sent[40:50]
    getattr(first, end)()
    publisher.publish(*sent[50:])
    # mosquitto_sub cannot but subscribe again: what is there goes on where it was.
    again = [] if peer.resumes_silently else [Subscription(topic, qos, start_time=since_ms)]
    second = peer.open(*again, **mine)
    got = [second.receive()]
    while got[-1] != sent[-1]:
        got.append(second.receive())
    assert got[-10:] == sent[50:]
    # A client that is cut off may not have acknowledged the last of what it had.
    assert got == sent[60 - len(got) :]


@every_peer_with_5
def test_before_now(peer: Peer, topic: str) -> None:
    peer.open(Subscription(topic, 1), **named()).disconnect()
    sent = [Message(topic, b"%d" % number, 1) for number in range(20)]
    peer.open().publish(*sent)
    late = peer.open(Subscription(topic, 1, start_time=-HOUR_MS), **named())
    assert [late.receive() for _ in sent] == sent
