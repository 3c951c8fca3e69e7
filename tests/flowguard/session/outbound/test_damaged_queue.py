"""A queue that the store cannot read is held back and reported; all other clients are served."""

import pytest

from tests.flowguard.session.sessions import Client, Sessions
from tests.support.on_disk import DamagedStore
from tests.support.readings import payloads

COUNT = 40


def stage_with_backlogs(
    *names: str, policy: str = "drop-new"
) -> tuple[Sessions, DamagedStore, Client]:
    """Offline clients, with the same queued messages for each."""
    store = DamagedStore()
    sessions = Sessions(
        {"session": {"queue_policy": policy, "queue_messages_max": COUNT}}, store=store
    )
    for name in names:
        client = sessions.connect_durable(name)
        client.subscribe("t", qos=1)
        client.close()
    publisher = sessions.connect("p")
    for number in range(COUNT):
        publisher.publish("t", b"%d" % number, qos=1)
    return sessions, store, publisher


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest"])
def test_what_comes_for_a_damaged_queue_is_bounded_and_counted(policy: str) -> None:
    sessions, store, publisher = stage_with_backlogs("a", policy=policy)
    store.damaged = "a"
    for _ in range(1_000):
        publisher.publish("t", b"more", qos=1)
    session = sessions.sessions["a"]
    dropped = sessions.node.counters.publish_dropped
    assert session.queue.count + dropped == COUNT + 1_000
    assert session.queue.count <= COUNT + 250
    assert sessions.node.counters.pages_unreadable <= 1


def test_a_fresh_start_leaves_the_damage_behind() -> None:
    sessions, store, publisher = stage_with_backlogs("a")
    store.damaged, store.after_pos = "a", 0
    fresh = sessions.connect("a", clean_start=True, session_expiry_interval=3_600)
    fresh.subscribe("t", qos=1)
    store.damaged = None
    publisher.publish("t", b"new", qos=1)
    assert payloads(fresh) == [b"new"]
