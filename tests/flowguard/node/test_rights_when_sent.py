"""Rights when a message is sent: a session sends what its present user may receive, by any way."""

from collections.abc import Callable

import pytest

from flowguard.access.rules_toml import parse_toml
from flowguard.codec.packets import Connack, Connect, Puback, Pubrec, Pubrel, Subscribe
from flowguard.flow import Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.session.chores import FILTERS_PIECE
from flowguard.types import MQTT_5, MQTT_311, Properties, SubscriptionOptions
from tests.support.authentication import SaidNames
from tests.support.readings import payloads
from tests.support.stage import Client, Stage, StoreOnDisk, StoreWithLog

RULES = """
[roles.root]
users = ["root"]
publish = ["#"]
[roles.ann]
users = ["ann"]
receive = ["a/#", "all/#"]
[roles.bob]
users = ["bob"]
receive = ["b/#", "all/#"]
"""
CHANGED = RULES.replace('["a/#", "all/#"]', '["all/#"]')
"""Ann may not receive a/# any more."""
Change = Callable[[Stage, Client, int], Client]


def make_stage(store: StoreOnDisk | None = None, log_threshold: int = 0) -> Stage:
    hooks = Hooks(checker=SaidNames(), rules=parse_toml(RULES, "acl.toml"))
    session = {"bound_to_user": False, "log_threshold": log_threshold}
    return Stage({"session": session}, store=store, hooks=hooks)


def come(stage: Stage, user: str, client_id: str = "c", *, version: int = MQTT_5) -> Client:
    connect = Connect(client_id, version, False, username=user)
    if version == MQTT_5:
        connect.properties = Properties(session_expiry_interval=3_600)
    client = stage.attempt(connect)
    client.connack = client.expect(Connack)
    assert client.connack.reason_code == 0
    return client


def reload(stage: Stage) -> None:
    stage.node.use_rules(parse_toml(CHANGED, "acl.toml"), stage.now_s)
    stage.settle()


def another_user(stage: Stage, client: Client, version: int) -> Client:
    client.close()
    return come(stage, "bob", version=version)


def another_user_takes_over(stage: Stage, client: Client, version: int) -> Client:
    return come(stage, "bob", version=version)


def another_user_after_a_restart(stage: Stage, client: Client, version: int) -> Client:
    client.close()
    stage.restart()
    return come(stage, "bob", version=version)


def reload_while_away(stage: Stage, client: Client, version: int) -> Client:
    client.close()
    reload(stage)
    return come(stage, "ann", version=version)


def reload_while_connected(stage: Stage, client: Client, version: int) -> Client:
    client.take()
    reload(stage)
    return come(stage, "ann", version=version)


CHANGES = [
    another_user,
    another_user_takes_over,
    another_user_after_a_restart,
    reload_while_away,
    reload_while_connected,
]


@pytest.mark.parametrize("version", [MQTT_5, MQTT_311])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_in_flight_goes_again_only_to_a_user_who_may_receive_it(
    change: Change, qos: int, version: int
) -> None:
    stage = make_stage(StoreOnDisk())
    first = come(stage, "ann", version=version)
    first.subscribe("a/#", "all/#", qos=qos)
    root = come(stage, "root", "r")
    for topic in ("a/1", "all/1", "a/2", "all/2"):
        root.publish(topic, topic.encode(), qos=qos)
    assert len(first.publishes(acknowledge=False)) == 4
    second = change(stage, first, version)
    assert payloads(second) == [b"all/1", b"all/2"]
    session = stage.node.registry.sessions["c"]
    assert not session.inflight.messages
    assert stage.node.counters.dropped[Reason.NOT_AUTHORIZED] == 2
    assert stage.node.state.inflight.budget.used_bytes == 0
    stage.restart()
    assert payloads(come(stage, "ann", version=version)) == []


def test_a_message_that_its_client_has_is_released_for_another_user_too() -> None:
    stage = make_stage()
    first = come(stage, "ann")
    first.subscribe("a/#", qos=2)
    come(stage, "root", "r").publish("a/1", b"1", qos=2)
    (message,) = first.publishes(acknowledge=False)
    first.send(Pubrec(message.packet_id))
    second = another_user(stage, first, MQTT_5)
    assert second.expect(Pubrel).packet_id == message.packet_id
    assert payloads(second) == []


@pytest.mark.parametrize("change", CHANGES)
def test_what_waits_goes_only_to_a_user_who_may_receive_it(change: Change) -> None:
    stage = make_stage(StoreOnDisk())
    first = come(stage, "ann")
    first.subscribe("a/#", "all/#", qos=1)
    first.close()
    root = come(stage, "root", "r")
    for topic in ("a/1", "all/1"):
        root.publish(topic, topic.encode(), qos=1)
    assert payloads(change(stage, first, MQTT_5)) == [b"all/1"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_being_stored_goes_only_to_a_user_who_may_receive_it(qos: int) -> None:
    stage = make_stage()
    ann, root = come(stage, "ann"), come(stage, "root", "r")
    ann.subscribe("a/#", "all/#", qos=qos)
    come(stage, "ann", "durable").subscribe("a/#", "all/#", qos=1)
    stage.hold_commits = True
    for topic in ("a/1", "all/1"):
        root.publish(topic, topic.encode(), qos=max(1, qos))
    reload(stage)
    stage.release_commits()
    assert payloads(ann) == [b"all/1"]


def test_retained_messages_go_only_to_a_user_who_may_receive_them() -> None:
    for qos in (0, 1):
        stage = make_stage()
        ann, root = come(stage, "ann"), come(stage, "root", "r")
        for topic in ("a/1", "all/1"):
            root.publish(topic, topic.encode(), retain=True)
        stage.hold_commits = True
        ann.send(Subscribe(1, (("#", SubscriptionOptions(qos)),)))
        reload(stage)
        stage.release_commits()
        assert payloads(ann) == [b"all/1"], qos


@pytest.mark.parametrize("change", [another_user, reload_while_away])
def test_the_log_is_read_only_by_a_user_who_may_receive_it(change: Change) -> None:
    stage = make_stage(StoreWithLog(), log_threshold=1)
    first = come(stage, "ann")
    first.subscribe("a/#", "all/#", qos=1)
    first.close()
    root = come(stage, "root", "r")
    for topic in ("a/1", "all/1"):
        root.publish(topic, topic.encode(), qos=1)
    second = change(stage, first, MQTT_5)
    stage.advance(1)
    assert payloads(second) == [b"all/1"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_group_gives_only_to_a_user_who_may_receive_it(change: Change) -> None:
    stage = make_stage(StoreOnDisk())
    first = come(stage, "ann")
    first.subscribe("$share/g/a/#", qos=1)
    come(stage, "root", "r").publish("a/1", b"1", qos=1)
    second = change(stage, first, MQTT_5)
    come(stage, "root", "r").publish("a/2", b"2", qos=1)
    assert payloads(second) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_group_gives_nothing_while_many_subscriptions_are_reviewed(qos: int) -> None:
    stage = make_stage()
    ann, root = come(stage, "ann"), come(stage, "root", "r")
    filters = [f"all/{number}" for number in range(FILTERS_PIECE)]
    ann.subscribe("$share/g/a/#", *filters, qos=qos)
    stage.hold_chores = True
    rules = parse_toml(CHANGED, "acl.toml")
    rules.version = 2
    stage.node.reviews.anew(stage.node.registry.sessions["c"], rules, stage.now_s)
    root.publish("a/1", b"1", qos=qos)
    assert payloads(ann) == []
    stage.hold_chores = False
    stage.settle()
    assert payloads(ann) == []


def test_acknowledgements_of_what_was_not_sent_again_do_no_harm() -> None:
    stage = make_stage()
    first = come(stage, "ann")
    first.subscribe("a/#", qos=1)
    come(stage, "root", "r").publish("a/1", b"1", qos=1)
    (message,) = first.publishes(acknowledge=False)
    second = another_user(stage, first, MQTT_5)
    second.send(Puback(message.packet_id))
    assert not second.is_closed
