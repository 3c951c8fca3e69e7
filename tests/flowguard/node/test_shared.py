import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.flow import Reason
from tests.support.readings import payloads
from tests.support.stage import Client, Stage


def members(stage: Stage, *names: str, qos: int = 2, version: int = 5) -> list[Client]:
    """Members of the group g on topic a, each with a durable session."""
    clients = [stage.connect_durable(name, version=version) for name in names]
    for client in clients:
        client.subscribe("$share/g/a", qos=qos)
    return clients


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(version: int, qos: int) -> None:
    stage = Stage()
    group = members(stage, "a", "b", "c", version=version)
    publisher = stage.connect("p", version=version)
    for number in range(6):
        publisher.publish("a", b"%d" % number, qos=qos)
    assert [payloads(client) for client in group] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_groups_and_plain_subscribers_do_not_share_with_each_other() -> None:
    stage = Stage()
    clients = [stage.connect(name) for name in ("a", "b", "c")]
    for client, filter in zip(clients, ("$share/g/a/#", "$share/h/a/#", "a/#"), strict=True):
        client.subscribe(filter)
    stage.connect("p").publish("a/b", b"x")
    assert [payloads(client) for client in clients] == [[b"x"]] * 3


def test_the_same_group_name_on_another_filter_is_another_group() -> None:
    stage = Stage()
    client, other = stage.connect("a"), stage.connect("b")
    client.subscribe("$share/g/a/b")
    other.subscribe("$share/g/a/+")
    stage.connect("p").publish("a/b", b"x")
    assert (payloads(client), payloads(other)) == ([b"x"], [b"x"])


@pytest.mark.spec("MQTT-4.8.2-3")
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_message_comes_at_the_qos_granted_to_the_member_that_gets_it(published: int) -> None:
    stage = Stage()
    publisher = stage.connect("p")
    group = [stage.connect(f"c{qos}") for qos in (0, 1, 2)]
    for qos, client in enumerate(group):
        client.subscribe("$share/g/a", qos=qos)
    for _ in group:
        publisher.publish("a", qos=published)
    for qos, client in enumerate(group):
        assert [message.qos for message in client.publishes()] == [min(qos, published)]


def test_members_who_are_here_come_before_those_who_are_away(version: int) -> None:
    stage = Stage()
    away, here = members(stage, "away", "here", version=version)
    away.close()
    publisher = stage.connect("p", version=version)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=1)
    assert payloads(here) == [b"0", b"1", b"2"]
    assert payloads(stage.connect_durable("away", version=version)) == []


def test_a_member_whose_window_is_full_is_passed_over() -> None:
    stage = Stage()
    slow = stage.connect("slow", receive_maximum=1)
    quick = stage.connect("quick")
    for client in (slow, quick):
        client.subscribe("$share/g/a", qos=1)
    publisher = stage.connect("p")
    for number in range(7):
        publisher.publish("a", b"%d" % number, qos=1)
    assert len(slow.publishes(acknowledge=False)) == 1
    assert len(payloads(quick)) == 5, "one is sent to the slow one, and one waits for it"


def test_with_nobody_here_messages_wait_for_the_first_member_to_come_back(version: int) -> None:
    stage = Stage()
    for client in members(stage, "a", "b", version=version):
        client.close()
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"x", qos=1)
    publisher.publish("a", b"y", qos=1)
    waiting = [payloads(stage.connect_durable(name, version=version)) for name in ("a", "b")]
    assert waiting == [[b"x", b"y"], []]


def test_a_qos_0_message_that_nobody_can_take_is_counted() -> None:
    stage = Stage()
    for client in members(stage, "a", "b"):
        client.close()
    stage.connect("p").publish("a")
    assert stage.node.counters.dropped == {Reason.OFFLINE_QOS_0: 1}


@pytest.mark.spec("MQTT-4.8.2-4")
@pytest.mark.parametrize("received", [False, True], ids=["before PUBREC", "after PUBREC"])
def test_a_qos_2_delivery_is_completed_to_the_member_it_was_begun_to(received: bool) -> None:
    stage = Stage()
    first, second = members(stage, "first", "second")
    stage.connect("p").publish("a", b"x", qos=2)
    (message,) = first.publishes(acknowledge=False)
    if received:
        first.send(Pubrec(message.packet_id))
        first.expect(Pubrel)
    first.close()
    assert payloads(second) == []
    first = stage.connect_durable("first")
    if not received:
        (again,) = first.publishes(acknowledge=False)
        assert (again.dup, again.packet_id, again.payload) == (True, message.packet_id, b"x")
        first.send(Pubrec(message.packet_id))
    assert first.expect(Pubrel) == Pubrel(message.packet_id)
    first.send(Pubcomp(message.packet_id))
    assert first.take() == []
    assert payloads(second) == []


@pytest.mark.spec("MQTT-4.8.2-5")
@pytest.mark.parametrize("end", ["expiry", "clean start", "disconnect"])
def test_a_qos_2_message_goes_to_nobody_else_when_its_session_ends(end: str) -> None:
    stage = Stage()
    first, second = members(stage, "first", "second")
    stage.connect("p").publish("a", b"x", qos=2)
    assert len(first.publishes(acknowledge=False)) == 1
    if end == "disconnect":
        first.disconnect(session_expiry_interval=0)
    else:
        first.close()
    if end == "expiry":
        stage.now_s += 3_600
        stage.advance(1)
    elif end == "clean start":
        assert stage.connect("first").publishes() == []
    assert payloads(second) == []


@pytest.mark.spec("MQTT-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_its_member_refuses_is_offered_to_nobody_else(qos: int) -> None:
    stage = Stage()
    first, second = members(stage, "first", "second")
    stage.connect("p").publish("a", b"x", qos=qos)
    (message,) = first.publishes(acknowledge=False)
    answer = Puback if qos == 1 else Pubrec
    first.send(answer(message.packet_id, 0x97))
    assert first.take() == []
    assert payloads(second) == []
    first.close()
    assert payloads(stage.connect_durable("first")) == []
    assert payloads(second) == []


def test_one_member_can_be_in_a_group_and_subscribed_for_itself(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("a", "$share/g/a", qos=1)
    stage.connect("p", version=version).publish("a", b"x", qos=1)
    assert payloads(client) == [b"x", b"x"]


def test_a_group_survives_a_restart(version: int) -> None:
    stage = Stage()
    members(stage, "first", "second", version=version)
    stage.restart()
    clients = [stage.connect_durable(name, version=version) for name in ("first", "second")]
    publisher = stage.connect("p", version=version)
    for _ in range(4):
        publisher.publish("a", b"x", qos=1)
    assert [len(payloads(client)) for client in clients] == [2, 2]


def test_who_comes_back_to_a_large_sleeping_group_is_chosen_at_once() -> None:
    stage = Stage()
    group = members(stage, *(f"member-{number}" for number in range(100)))
    for client in group:
        client.close()
    publisher = stage.connect("p")
    for _ in range(100):
        publisher.publish("a", b"missed by all", qos=0)
    back = stage.connect_durable("member-99")
    publisher.publish("a", b"x", qos=1)
    assert payloads(back) == [b"x"]
