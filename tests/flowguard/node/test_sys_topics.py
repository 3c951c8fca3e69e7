import pytest

from flowguard.flow.load.signals import Signal
from flowguard.node.upkeep.sys_topics import SysTopics
from tests.support.stage import Client, Stage


def make() -> tuple[Stage, SysTopics]:
    stage = Stage()
    return stage, SysTopics(stage.node, stage.now_s)


def publish(stage: Stage, topics: SysTopics) -> None:
    topics.publish(stage.now_s)
    stage.settle()


def shown(client: Client) -> dict[str, str]:
    return {
        message.topic.removeprefix("$SYS/broker/"): message.payload.decode()
        for message in client.publishes()
    }


def test_the_state_of_the_broker_is_retained_below_sys(version: int) -> None:
    stage, topics = make()
    stage.connect_durable("away").close()
    stage.connect("p").publish("a", b"kept", retain=True)
    publish(stage, topics)
    client = stage.connect("c", version=version)
    client.subscribe("$SYS/#")
    messages = client.publishes()
    assert all(message.retain for message in messages)
    values = {message.topic: message.payload for message in messages}
    assert values["$SYS/broker/version"].startswith(b"flowguard version ")
    assert values["$SYS/broker/uptime"] == b"0 seconds"
    assert values["$SYS/broker/clients/connected"] == b"1"
    assert values["$SYS/broker/clients/disconnected"] == b"1"
    assert values["$SYS/broker/clients/total"] == b"2"
    assert values["$SYS/broker/retained messages/count"] == b"1"
    assert values["$SYS/broker/publish/messages/received"] == b"1"


def test_a_subscriber_is_sent_what_has_changed_and_nothing_else(version: int) -> None:
    stage, topics = make()
    client = stage.connect("c", version=version)
    client.subscribe("$SYS/broker/clients/+", "$SYS/broker/version")
    publish(stage, topics)
    assert shown(client)["clients/connected"] == "1"
    stage.connect("d")
    publish(stage, topics)
    changed = shown(client)
    assert changed["clients/connected"] == "2"
    assert "version" not in changed
    publish(stage, topics)
    assert shown(client) == {}


@pytest.mark.spec("MQTT-4.7.2-1", "v3:MQTT-4.7.2-1")
@pytest.mark.parametrize("filter", ["#", "+/broker/version", "+/#", "$share/g/#"])
def test_no_leading_wildcard_sees_them(version: int, filter: str) -> None:
    stage, topics = make()
    client = stage.connect("c", version=version)
    client.subscribe(filter)
    publish(stage, topics)
    client.unsubscribe(filter)
    client.subscribe(filter)
    assert shown(client) == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_clients_do_not_write_there(version: int, qos: int) -> None:
    stage, topics = make()
    publish(stage, topics)
    client = stage.connect("c", version=version)
    client.publish("$SYS/broker/version", b"mine", qos=qos, retain=True)
    client.subscribe("$SYS/broker/version")
    assert shown(client)["version"].startswith("flowguard")


def test_they_are_not_stored(version: int) -> None:
    stage, topics = make()
    publish(stage, topics)
    stage.restart()
    client = stage.connect("c", version=version)
    client.subscribe("$SYS/#")
    assert shown(client) == {}
    assert list(stage.store.retained()) == []


def test_loads_are_averages_per_minute() -> None:
    stage, topics = make()
    client = stage.connect("c")
    publish(stage, topics)
    for _ in range(60):
        client.publish("a")
    stage.now_s += 60
    publish(stage, topics)
    client.subscribe("$SYS/broker/load/publish/received/+")
    loads = shown(client)
    assert loads["load/publish/received/1min"] == "60.00"
    assert loads["load/publish/received/5min"] == "12.00"
    assert loads["load/publish/received/15min"] == "4.00"


def test_counters_count() -> None:
    stage, topics = make()
    client = stage.connect("c")
    client.subscribe("a", "$share/g/b", qos=1)
    client.publish("a", b"12345", qos=1)
    client.publishes()
    publish(stage, topics)
    client.subscribe("$SYS/broker/#")
    values = shown(client)
    assert values["publish/messages/received"] == "1"
    assert values["publish/messages/sent"] == "1"
    assert values["publish/bytes/received"] == "5"
    assert values["subscriptions/count"] == "2"
    assert values["shared_subscriptions/count"] == "1"
    assert values["publish/messages/dropped"] == "0"
    assert int(values["bytes/received"]) > 20


def test_protection_says_what_it_sees_and_does() -> None:
    stage, topics = make()
    stage.connect_durable("s").subscribe("t", qos=1)
    publisher = stage.connect("p")
    reader = stage.connect("c")
    stage.hold_commits = True
    publisher.publish("t", b"x", qos=1)
    topics.publish(stage.now_s)
    stage.release_commits()
    reader.subscribe("$SYS/flowguard/#")
    values = {
        message.topic.removeprefix("$SYS/flowguard/"): message.payload.decode()
        for message in reader.publishes()
    }
    assert values["policy"] == "flowguard"
    assert values["window"] == "100"
    assert values["unfinished/packets"] == "1"
    assert values["connects/rung"] == "buffer"
    assert values["why"] == "nothing decided yet"
    for name in ("clients/paused", "unfinished/bytes", "connects/limit", "connects/waiting"):
        assert values[name].isdigit(), name
    for signal in Signal:
        assert values[f"pressure/{signal}"] == "0.00"
