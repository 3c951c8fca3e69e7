import time
import uuid

import pytest

from tests.interop.broker import Broker
from tests.interop.clients import (
    every_library,
    every_library_with_5,
    every_nameless,
    every_peer,
    every_peer_with_5,
    every_qos,
)
from tests.interop.peer import Message, Peer, Subscription

pytestmark = pytest.mark.peers

EXPIRY_S = 300


@pytest.fixture
def client_id() -> str:
    """Short enough for 3.1."""
    return uuid.uuid4().hex[:16]


# --- wills ------------------------------------------------------------------------------------


@every_qos
@every_peer
def test_the_will_of_who_falls_silent(peer: Peer, topic: str, qos: int) -> None:
    watcher = peer.open(Subscription(topic, qos))
    will = Message(topic, b"gone", qos)
    peer.open("nothing", will=will).cut()
    assert watcher.receive() == will


@every_peer
def test_a_retained_will_stays(peer: Peer, topic: str) -> None:
    watcher = peer.open(Subscription(topic, 1))
    will = Message(topic, b"gone", 1, retain=True)
    peer.open("nothing", will=will).cut()
    watcher.receive()
    assert peer.open(Subscription(topic, 1)).receive() == will


@every_peer
def test_who_disconnects_has_no_will(peer: Peer, topic: str) -> None:
    watcher = peer.open(Subscription(topic, 1))
    peer.open("nothing", will=Message(topic, b"gone", 1)).disconnect()
    peer.open().publish(Message(topic, b"all is well", 1))
    expected = {b"gone", b"all is well"} if peer.leaves_with_will else {b"all is well"}
    assert {watcher.receive().payload for _ in expected} == expected


@every_peer_with_5
def test_the_properties_of_a_will(peer: Peer, topic: str) -> None:
    watcher = peer.open(Subscription(topic, 1))
    properties = {
        "content_type": "text/plain",
        "correlation_data": b"7",
        "response_topic": "answers",
        "user_property": [("why", "cut")],
    }
    peer.open("nothing", will=Message(topic, b"gone", 1, properties=properties)).cut()
    assert watcher.receive() == Message(topic, b"gone", 1, properties=properties)


@every_peer_with_5
def test_who_comes_back_in_time_has_no_will(peer: Peer, topic: str, client_id: str) -> None:
    watcher = peer.open(Subscription(topic, 1))
    will = Message(topic, b"gone", 1, properties={"will_delay_interval": EXPIRY_S})
    mine = {"client_id": client_id, "clean": False, "expiry_s": EXPIRY_S}
    peer.open("nothing", will=will, **mine).cut()
    peer.open("nothing", **mine).disconnect()
    peer.open().publish(Message(topic, b"all is well", 1))
    assert watcher.receive().payload == b"all is well"


# --- sessions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos", "end"), [(1, "cut"), (2, "disconnect")])
@every_peer
def test_a_session_is_resumed(peer: Peer, topic: str, client_id: str, qos: int, end: str) -> None:
    mine = {"client_id": client_id, "clean": False, "expiry_s": EXPIRY_S}
    first = peer.open(Subscription(topic, qos), **mine)
    assert first.session_present in (False, None)
    getattr(first, end)()
    sent = [Message(topic, b"%d" % number, qos) for number in range(150)]
    peer.open().publish(*sent)
    # mosquitto_sub cannot but subscribe again, which changes nothing.
    again = [] if peer.resumes_silently else [Subscription(topic, qos)]
    second = peer.open(*again, **mine)
    assert second.session_present in (True, None)
    assert [second.receive() for _ in sent] == sent


@every_peer
def test_a_clean_start_forgets(peer: Peer, topic: str, client_id: str) -> None:
    mine = {"client_id": client_id, "clean": False, "expiry_s": EXPIRY_S}
    peer.open(Subscription(topic, 1), **mine).disconnect()
    publisher = peer.open()
    publisher.publish(Message(topic, b"missed", 1))
    fresh = peer.open(Subscription(topic, 1), client_id=client_id)
    assert fresh.session_present in (False, None)
    publisher.publish(Message(topic, b"live", 1))
    assert fresh.receive().payload == b"live"


@every_library
def test_a_second_connection_takes_over(peer: Peer, topic: str, client_id: str) -> None:
    first = peer.open(Subscription(topic, 1), client_id=client_id)
    second = peer.open(Subscription(topic, 1), client_id=client_id)
    assert first.wait_ended() == (0x8E if peer.is_5 else None)
    peer.open().publish(Message(topic, b"x", 1))
    assert second.receive().payload == b"x"


@every_library_with_5
def test_messages_expire_in_the_queue(peer: Peer, topic: str, client_id: str) -> None:
    """Sent in this order, and in this order they would arrive."""
    mine = {"client_id": client_id, "clean": False, "expiry_s": EXPIRY_S}
    peer.open(Subscription(topic, 1), **mine).disconnect()
    short = Message(topic, b"short", 1, properties={"message_expiry_interval": 1})
    peer.open().publish(short, Message(topic, b"long", 1))
    time.sleep(1.1)  # The interval of the standard is in whole seconds.
    assert peer.open(**mine).receive().payload == b"long"


# --- shared subscriptions ---------------------------------------------------------------------


@every_qos
@every_peer
def test_a_group_shares_the_work(peer: Peer, broker: Broker, topic: str, qos: int) -> None:
    """Each message goes to one member; `end` goes to all, after everything else.

    With several workers those members come first that the publisher's worker has.
    """
    members = [
        peer.open(
            Subscription(f"$share/group/{topic}/work", qos), Subscription(f"{topic}/end", qos)
        )
        for _ in range(3)
    ]
    outsider = peer.open(Subscription(f"{topic}/#", qos))
    work = [b"%d" % number for number in range(60)]
    publisher = peer.open()
    publisher.publish(*(Message(f"{topic}/work", each, qos) for each in work))
    seen = [outsider.receive().payload for _ in work]
    assert (seen if peer.keeps_order(qos) else sorted(seen, key=int)) == work
    publisher.publish(Message(f"{topic}/end", b"end", qos))
    done = []
    for member in members:
        mine = []
        while (got := member.receive()).payload != b"end":
            mine.append(got.payload)
        assert mine or broker.workers > 1, "a member was left out"
        done += mine
    assert sorted(done, key=int) == work
    assert outsider.receive().payload == b"end"


# --- names ------------------------------------------------------------------------------------


@every_nameless
def test_the_broker_names_who_has_no_name(peer: Peer, topic: str) -> None:
    """gmqtt would name itself; in 3.1 everybody has a name."""
    clients = [peer.open(Subscription(topic, 1), client_id="") for _ in range(2)]
    peer.open().publish(Message(topic, b"x", 1))
    assert [each.receive().payload for each in clients] == [b"x", b"x"]
