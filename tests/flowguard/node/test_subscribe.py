import pytest

from flowguard.codec.packets import (
    Disconnect,
    Puback,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.node.connect.authentication import Hooks
from flowguard.session.chores import FILTERS_PIECE
from flowguard.types import MQTT_5, MQTT_311, ReasonCode, SubscriptionOptions
from tests.support.readings import payloads
from tests.support.stage import Stage


def options(qos: int = 0) -> SubscriptionOptions:
    return SubscriptionOptions(qos=qos)


# --- the answer ------------------------------------------------------------------------------


@pytest.mark.spec(
    "MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-2.2.1-6", "v3:MQTT-3.8.4-1", "v3:MQTT-3.8.4-2"
)
@pytest.mark.spec("v3:MQTT-2.3.1-7")
def test_every_subscribe_gets_a_suback_with_its_identifier(version: int) -> None:
    client = Stage().connect("c", version=version)
    for packet_id in (1, 77, 65_535):
        client.send(Subscribe(packet_id, (("a", options()),)))
        assert client.take() == [Suback(packet_id, (0,))]


@pytest.mark.spec("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.9.3-1")
@pytest.mark.spec("v3:MQTT-3.8.4-4", "v3:MQTT-3.8.4-5", "v3:MQTT-3.9.3-1")
def test_one_suback_has_a_code_for_each_filter_in_its_order(version: int) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    filters = (("a", options(2)), ("b", options(0)), ("c", options(1)), ("b", options(1)))
    client.send(Subscribe(9, filters))
    assert client.take() == [Suback(9, (2, 0, 1, 1))]
    for topic, qos in (("a", 2), ("b", 1), ("c", 1)):
        stage.connect("p").publish(topic, qos=2)
        assert [message.qos for message in client.publishes()] == [qos]


@pytest.mark.spec("MQTT-3.8.4-7", "MQTT-3.9.3-2", "MQTT-3.2.2-10")
def test_the_codes_are_the_granted_qos_or_the_reason_of_a_failure() -> None:
    client = Stage({"session": {"maximum_qos": 1, "topic_levels_max": 3}}).connect("c")
    assert client.subscribe("a", "a/b/c/d", "$share/g/c/d", qos=2).reason_codes == (
        ReasonCode.GRANTED_QOS_1,
        ReasonCode.TOPIC_FILTER_INVALID,
        ReasonCode.TOPIC_FILTER_INVALID,
    )


@pytest.mark.spec("v3:MQTT-3.9.3-2")
def test_in_3_1_1_every_failure_is_0x80() -> None:
    client = Stage({"session": {"topic_levels_max": 3}}).connect("c", version=MQTT_311)
    assert client.subscribe("a", "a/b/c/d", "$share//x", qos=2).reason_codes == (2, 0x80, 0x80)


@pytest.mark.spec("MQTT-3.8.4-5", "v3:MQTT-3.8.4-4")
def test_a_refused_filter_does_not_harm_the_others_of_its_packet(version: int) -> None:
    stage = Stage({"session": {"topic_levels_max": 3}})
    client = stage.connect("c", version=version)
    client.subscribe("a/b/c/d", "a")
    stage.connect("p").publish("a", b"x")
    assert payloads(client) == [b"x"]


BROKEN = ("#/x", "a#", "a/#/b", "+a", "a/b+/c", "##", "$share/g/#/x", "$share/+/x#", "$share/g#/x")
HALF_SHARED = ("$share/", "$share//x", "$share/p", "$share/p/", "$share/+/x")


@pytest.mark.spec("MQTT-4.7.1-1", "MQTT-4.7.1-2", "v3:MQTT-4.7.1-2", "v3:MQTT-4.7.1-3")
@pytest.mark.spec("MQTT-4.8.2-1", "MQTT-4.8.2-2", "MQTT-4.13.1-1", "v3:MQTT-4.8.0-1")
@pytest.mark.parametrize("filter", BROKEN + HALF_SHARED)
@pytest.mark.parametrize("unsubscribes", [False, True], ids=["SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_filter_against_the_grammar_ends_the_connection_and_nothing_of_its_packet_is_done(
    version: int, filter: str, unsubscribes: bool
) -> None:
    stage = Stage()
    client = stage.connect("c", version=version)
    client.subscribe("kept")
    if unsubscribes:
        client.send(Unsubscribe(9, ("kept", filter)))
    else:
        client.send(Subscribe(9, (("new", options()), (filter, options()))))
    if version == MQTT_311 and "$share/" in filter and filter not in BROKEN:
        # 3.1.1 knows no shared subscriptions: no filter of ours, but a legal one.
        assert client.take()[0] == (Unsuback(9) if unsubscribes else Suback(9, (0, 0x80)))
        return
    assert client.is_closed
    answers = client.take()
    if version == MQTT_5:
        goodbye = answers.pop()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason_code == ReasonCode.MALFORMED_PACKET
    assert answers == []
    assert stage.node.counters.malformed == 1


@pytest.mark.parametrize("unsubscribes", [False, True], ids=["SUBSCRIBE", "UNSUBSCRIBE"])
def test_a_filter_against_the_grammar_is_found_among_many(unsubscribes: bool) -> None:
    """They are worked off piece by piece: what came before it is done, nothing behind it is."""
    stage = Stage()
    client = stage.connect_durable("c")
    filters = [*(f"a/{number}" for number in range(2 * FILTERS_PIECE)), "a#", "z"]
    if unsubscribes:
        client.send(Unsubscribe(9, tuple(filters)))
    else:
        client.send(Subscribe(9, tuple((filter, options()) for filter in filters)))
    assert client.expect(Disconnect).reason_code == ReasonCode.MALFORMED_PACKET
    assert client.take() == []
    assert "z" not in stage.node.registry.sessions["c"].subscriptions
    assert stage.connect_durable("c").subscribe("z").reason_codes == (0,)


def test_a_malformed_unsubscribe_leaves_the_subscriptions_of_the_session() -> None:
    stage = Stage()
    client = stage.connect_durable("c")
    client.subscribe("a", qos=1)
    client.send(Unsubscribe(9, ("a", "#/a")))
    stage.connect("p").publish("a", b"x", qos=1)
    assert payloads(stage.connect_durable("c")) == [b"x"]


# --- delivery --------------------------------------------------------------------------------


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.spec("MQTT-3.8.4-8", "v3:MQTT-3.8.4-6")
def test_a_message_comes_at_the_lower_of_its_qos_and_the_granted_one(
    version: int, published: int, granted: int
) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("a", qos=granted)
    stage.connect("p", version=version).publish("a", b"x", qos=published)
    (message,) = subscriber.publishes()
    assert message.qos == min(published, granted)


@pytest.mark.spec("MQTT-4.5.0-1", "v3:MQTT-4.5.0-1")
def test_a_message_is_added_to_the_session_of_every_match_also_of_those_who_are_away(
    version: int,
) -> None:
    stage = Stage()
    here = stage.connect_durable("here", version=version)
    away = stage.connect_durable("away", version=version)
    for client in (here, away):
        client.subscribe("a/+", qos=1)
    away.close()
    other = stage.connect("other", version=version)
    other.subscribe("b/+", qos=1)
    stage.connect("p", version=version).publish("a/b", b"x", qos=1)
    assert payloads(here) == [b"x"]
    assert payloads(stage.connect_durable("away", version=version)) == [b"x"]
    assert payloads(other) == []


@pytest.mark.spec("MQTT-3.3.2-3", "v3:MQTT-3.3.2-3", "MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
def test_what_comes_matches_the_filter(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("a/+/c", "#", "+/x")
    subscriber.unsubscribe("#")
    publisher = stage.connect("p", version=version)
    for topic in ("a/b/c", "a//c", "a/b/c/d", "a/b", "$me/x", "me/x"):
        publisher.publish(topic)
    assert [message.topic for message in subscriber.publishes()] == ["a/b/c", "a//c", "me/x"]


@pytest.mark.spec("MQTT-3.8.4-3", "v3:MQTT-3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("a", qos=2)
    subscriber.subscribe("a", qos=0)
    stage.connect("p", version=version).publish("a", b"x", qos=2)
    (message,) = subscriber.publishes()
    assert message.qos == 0
    assert len(stage.node.router.table) == 1


@pytest.mark.spec("MQTT-3.8.4-4", "v3:MQTT-3.8.4-3")
def test_replacing_a_subscription_loses_no_message(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("a", qos=1)
    publisher = stage.connect("p", version=version)
    publisher.publish("a", b"kept", qos=1, retain=True)
    publisher.publish("a", b"before", qos=1)
    subscriber.subscribe("a", qos=1)
    publisher.publish("a", b"after", qos=1)
    assert payloads(subscriber) == [b"kept", b"before", b"kept", b"after"]


@pytest.mark.spec("MQTT-3.3.4-2", "v3:MQTT-3.3.5-1")
def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    for qos, filter in enumerate(("a/#", "a/+", "a/b")):
        subscriber.subscribe(filter, qos=qos)
    stage.connect("p", version=version).publish("a/b", b"x", qos=2)
    assert [message.qos for message in subscriber.publishes()] == [2]


# --- refusals --------------------------------------------------------------------------------


def test_a_client_may_have_only_so_many_subscriptions() -> None:
    client = Stage({"session": {"subscriptions_max": 2}}).connect("c")
    assert client.subscribe("a", "b", "c").reason_codes == (0, 0, ReasonCode.QUOTA_EXCEEDED)
    assert client.subscribe("a").reason_codes == (0,), "replacing takes no place"
    client.unsubscribe("b")
    assert client.subscribe("c").reason_codes == (0,), "a place is free again"


def test_all_clients_together_may_have_only_so_many_subscriptions() -> None:
    stage = Stage({"node": {"subscriptions_max": 2}})
    assert stage.connect("c").subscribe("a", "b").reason_codes == (0, 0)
    other = stage.connect("d")
    assert other.subscribe("a", "$share/g/a").reason_codes == (ReasonCode.QUOTA_EXCEEDED,) * 2
    stage.connect("c").close()
    assert other.subscribe("a").reason_codes == (0,), "an ended session gives its places back"


def test_a_filter_may_have_only_so_many_levels() -> None:
    client = Stage({"session": {"topic_levels_max": 3}}).connect("c")
    assert client.subscribe("a/b/c", "a/b/c/d").reason_codes == (
        0,
        ReasonCode.TOPIC_FILTER_INVALID,
    )


@pytest.mark.parametrize(("qos", "answers"), [(0, []), (1, [Puback(1, 0x90)])])
def test_a_topic_may_have_only_so_many_levels(qos: int, answers: list[Puback]) -> None:
    stage = Stage({"session": {"topic_levels_max": 3}})
    subscriber = stage.connect("s")
    subscriber.subscribe("#")
    publisher = stage.connect("p")
    publisher.publish("a/b/c/d", qos=qos)
    assert publisher.take() == answers
    assert payloads(subscriber) == []
    assert not publisher.is_closed


class OwnTopics:
    """Allows each client everything below a topic with its own name, and nothing else."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return topic.startswith(client_id + "/")

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return filter.startswith(client_id + "/")


@pytest.mark.parametrize(("version", "refused"), [(MQTT_311, 0x80), (MQTT_5, 0x87)])
def test_what_the_authorizer_forbids_is_not_subscribed(version: int, refused: int) -> None:
    stage = Stage(hooks=Hooks(authorizer=OwnTopics()))
    client = stage.connect("c", version=version)
    assert client.subscribe("c/#", "d/#").reason_codes == (0, refused)
    stage.connect("d").publish("d/x", b"not for c")
    stage.connect("c2").publish("c/x", b"not from c2")
    client.publish("c/x", b"mine")
    assert payloads(client) == [b"mine"]


@pytest.mark.spec("v3:MQTT-3.3.5-2")
def test_3_1_1_cannot_be_told_that_a_publish_is_not_allowed_so_it_is_acknowledged() -> None:
    stage = Stage(hooks=Hooks(authorizer=OwnTopics()))
    subscriber = stage.connect("d")
    subscriber.subscribe("d/#")
    client = stage.connect("c", version=MQTT_311)
    packet_id = client.publish("d/x", qos=1)
    assert client.take() == [Puback(packet_id)]
    assert payloads(subscriber) == []


def test_nobody_publishes_to_sys_topics_but_the_node(version: int) -> None:
    stage = Stage()
    subscriber = stage.connect("s", version=version)
    subscriber.subscribe("$SYS/#")
    publisher = stage.connect("p", version=version)
    publisher.publish("$SYS/broker/version", b"mine", retain=True)
    packet_id = publisher.publish("$SYS", b"mine", qos=1)
    refused = Puback(packet_id, 0x87 if version == MQTT_5 else 0)
    assert publisher.take() == [refused]
    assert payloads(subscriber) == []
    assert len(stage.node.router.retained) == 0


# --- durability ----------------------------------------------------------------------------


def test_a_subscription_is_there_once_suback_is(version: int) -> None:
    stage = Stage()
    client = stage.connect_durable("c", version=version)
    stage.hold_commits = True
    client.send(Subscribe(1, (("a", options(1)),)))
    assert client.take() == []
    stage.release_commits()
    assert client.take() == [Suback(1, (1,))]
    stage.restart()
    stage.connect("p", version=version).publish("a", b"x", qos=1)
    assert payloads(stage.connect_durable("c", version=version)) == [b"x"]
