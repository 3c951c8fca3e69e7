"""`Node.paused_count`: the number of clients with packets that wait for their window."""

from tests.flowguard.session.sessions import Client, Sessions


def slow(**flow: int) -> tuple[Sessions, Client]:
    sessions = Sessions({"flow": flow})
    sessions.connect_durable("s").subscribe("t", qos=1)
    publisher = sessions.connect("p")
    sessions.hold_commits = True
    return sessions, publisher


def test_a_client_counts_once_from_its_first_packet_that_waits_until_none_does() -> None:
    sessions, publisher = slow(window_max=2)
    for number in range(5):
        publisher.publish("t", b"x", qos=1)
        assert sessions.node.paused_count == (number >= 2)
    sessions.release_commits()
    assert sessions.node.paused_count == 0


def test_a_client_that_leaves_while_it_waits_is_not_counted_any_more() -> None:
    sessions, publisher = slow(window_max=1)
    for _ in range(2):
        publisher.publish("t", b"x", qos=1)
    assert sessions.node.paused_count == 1
    publisher.connection.end(None, sessions.now_s)
    assert sessions.node.paused_count == 0
