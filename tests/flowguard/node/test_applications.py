"""Applications: which clients are some, and that no class change drops their messages."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from flowguard.access.rules_toml import parse_toml
from flowguard.codec.packets import Connack, Connect
from flowguard.config import MIB, Settings, StoreSettings
from flowguard.errors import ConfigError
from flowguard.flow import Reason
from flowguard.node.applications import log_readers
from flowguard.node.connect.authentication import Hooks
from flowguard.node.upkeep.sys_topics import SysTopics
from flowguard.ops.explain import explain
from flowguard.ops.metrics import registry_of
from flowguard.ops.status import status_at
from flowguard.ops.view import View
from flowguard.records import Append, AppendToLog, PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.types import MQTT_5, Properties
from tests.flowguard.node.test_log_readers import (
    CLIENTS,
    AgainstLedger,
    CountingStore,
    payloads,
    publish,
    store_of,
)
from tests.flowguard.node.test_rules import SaidNames
from tests.flowguard.node.test_start_time import subscribe
from tests.support.stage import Client, Stage
from tests.support.store_apart import StoreApart

PATTERNS = {"application_users": ("spark*",), "application_client_ids": ("app-*", "sink")}


def staged(store: Any = None, hooks: Hooks | None = None, **session: Any) -> Stage:
    settings = {"session": PATTERNS | session}
    return Stage(settings, store=store or CountingStore(), hooks=hooks)


def come(
    stage: Stage, client_id: str, user: str | None = None, *, keeps: bool = True, **more: Any
) -> Client:
    client = stage.open(MQTT_5)
    properties = Properties(session_expiry_interval=3_600 if keeps else 0, **more)
    client.send(Connect(client_id, MQTT_5, False, username=user, properties=properties))
    client.connack = client.expect(Connack)
    assert client.connack.reason_code == 0, client.connack
    return client


def class_of(stage: Stage, client_id: str) -> str:
    found = explain(stage.node, client_id, stage.now_s)
    assert found is not None
    return found["client_class"]


def drained(stage: Stage, client: Client, seconds: float = 5) -> list[bytes]:
    """Return the messages of a client that acknowledges all."""
    got = payloads(client)
    for _ in range(round(10 * seconds)):
        stage.advance(0.1)
        got += payloads(client)
    return got


# --- who is one ----------------------------------------------------------------------------------


def test_names_say_who_is_an_application() -> None:
    stage = staged()
    for client_id, user, expected in (
        ("app-1", None, "application"),
        ("sink", None, "application"),
        ("sinker", None, "device"),
        ("APP-1", None, "device"),
        ("x", "spark-7", "application"),
        ("y", "hadoop", "device"),
        ("z", None, "device"),
    ):
        come(stage, client_id, user)
        assert class_of(stage, client_id) == expected, client_id


def test_a_session_that_ends_with_its_connection_is_a_devices() -> None:
    stage = staged()
    come(stage, "app-1", keeps=False)
    assert class_of(stage, "app-1") == "device"


ROLES = """
[roles.sensors]
users = ["spark"]
class = "device"
subscribe = ["#"]

[roles.readers]
users = ["ann", "spark"]
class = "application"
subscribe = ["#"]

[roles.others]
users = ["*"]
subscribe = ["#"]
"""


def test_the_first_role_that_says_so_goes_before_names() -> None:
    hooks = Hooks(checker=SaidNames(), rules=parse_toml(ROLES, "acl.toml"))
    stage = staged(hooks=hooks)
    for client_id, user, expected in (
        ("c1", "spark", "device"),
        ("c2", "ann", "application"),
        ("c3", "bob", "device"),
        ("app-4", "bob", "application"),
    ):
        come(stage, client_id, user)
        assert class_of(stage, client_id) == expected, user


def test_a_class_that_nobody_knows_is_told_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"acl.toml: roles.r.class: Input should be 'device' or"):
        parse_toml('[roles.r]\nclass = "gateway"\n', "acl.toml")


def test_the_class_is_that_of_the_last_connect_also_after_a_restart() -> None:
    stage = staged()
    come(stage, "c", "spark").close()
    assert class_of(stage, "c") == "application"
    stage.restart()
    assert class_of(stage, "c") == "application"
    stage.advance(60)  # The record made at the restart has the class, too.
    stage.restart()
    assert class_of(stage, "c") == "application"
    come(stage, "c", "hadoop").close()
    stage.restart()
    assert class_of(stage, "c") == "device"


def test_they_are_counted_where_people_look() -> None:
    stage = staged()
    first = come(stage, "app-1")
    come(stage, "app-2").close()
    come(stage, "app-2")
    come(stage, "c")
    first.close()
    view = View(stage.node, lambda: stage.now_s, lambda: None)
    assert status_at(view.catalogue, view.look())["applications"] == {
        "sessions": 2,
        "connected": 1,
        "lost": 0,
        "away_s": 0.0,
        "operations": {"used": 0, "limit": 0},
        "bytes": {"used": 0, "limit": 0},
        "publishers": 0,
        "groups": 0,
        "group_messages": 0,
        "groups_in_trouble": 0,
    }
    metrics = registry_of(view)
    assert metrics.get_sample_value("flowguard_applications") == 2
    assert metrics.get_sample_value("flowguard_applications_connected") == 1
    come(stage, "app-2", "x").disconnect(session_expiry_interval=0)
    reader = stage.connect("r")
    reader.subscribe("$SYS/flowguard/applications/#")
    SysTopics(stage.node, stage.now_s).publish(stage.now_s)
    stage.settle()
    found = {each.topic.rsplit("/", 1)[1]: each.payload for each in reader.publishes()}
    groups = {"groups": b"0", "messages": b"0"}
    assert found == {"total": b"1", "connected": b"0", "catching_up": b"0"} | groups


# --- on the log ----------------------------------------------------------------------------------


def test_all_that_is_for_an_application_is_logged_whatever_the_threshold() -> None:
    stage = staged()
    come(stage, "app-1").subscribe("a/#", qos=1)
    come(stage, "c").subscribe("#", qos=1)
    publish(stage, "a/b", b"1")
    assert store_of(stage).count(AppendToLog) == 1
    publish(stage, "b", b"2")
    assert store_of(stage).count(AppendToLog) == 1


def test_without_the_setting_they_have_queues_like_devices() -> None:
    settings = {"session": PATTERNS, "store": {"application_store": "queues"}}
    stage = Stage(settings, store=CountingStore())
    come(stage, "app-1").subscribe("a/#", qos=1)
    publish(stage, "a/b", b"1")
    store = store_of(stage)
    assert (store.count(AppendToLog), store.count(Append)) == (0, 1)
    assert class_of(stage, "app-1") == "application"


@pytest.mark.parametrize("policy", ["drop-new", "drop-oldest", "block"])
@pytest.mark.parametrize("is_here", [False, True])
def test_nothing_is_dropped_for_one_that_takes_nothing(policy: str, is_here: bool) -> None:
    """No publisher waits for it, either."""
    stage = staged(queue_policy=policy, queue_messages_max=10, block_s=1_000)
    reader = come(stage, "app-1", receive_maximum=1)
    reader.subscribe("a/#", qos=1)
    if not is_here:
        reader.close()
    sent = [b"%d" % number for number in range(200)]
    publish(stage, "a/b", *sent)
    assert stage.node.registry.sessions["app-1"].queue.count <= 10
    found = explain(stage.node, "app-1", stage.now_s)
    assert found is not None
    assert found["dropped"] == ([] if is_here else [Reason.OFFLINE_QOS_0])
    if not is_here:
        reader = come(stage, "app-1", receive_maximum=1)
    got: list[bytes] = []
    while len(got) < len(sent):
        got += payloads(reader)
        stage.advance(0.1)
    assert got == sent
    assert sum(stage.node.counters.dropped.values()) == 0


def test_one_that_keeps_up_again_has_its_messages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "QUEUE_MAX", 4)
    stage = staged()
    reader = come(stage, "app-1", receive_maximum=2)
    reader.subscribe("a/#", qos=2)
    numbers = [b"%d" % number for number in range(50)]
    publish(stage, "a/b", *numbers, qos=2)
    session = stage.node.registry.sessions["app-1"]
    assert session.behind
    got = drained(stage, reader)
    assert got == numbers
    assert not session.reads_log
    publish(stage, "a/b", b"live", qos=2)
    assert payloads(reader) == [b"live"]


def test_an_application_that_became_a_device_has_the_bounds_of_one() -> None:
    stage = staged(queue_messages_max=10)
    reader = come(stage, "c", "spark")
    reader.subscribe("a/#", qos=1)
    reader.close()
    sent = [b"%d" % number for number in range(100)]
    publish(stage, "a/b", *sent)
    reader = come(stage, "c", "hadoop")
    got = drained(stage, reader)
    assert got == sent, "what was logged for it comes all the same"
    logged = store_of(stage).count(AppendToLog)
    reader.close()
    publish(stage, "a/b", *sent)
    assert store_of(stage).count(AppendToLog) == logged
    assert stage.node.counters.dropped[Reason.QUEUE_MESSAGES] == 90


def test_a_device_that_became_an_application_gets_first_what_was_queued() -> None:
    stage = staged(queue_messages_max=10)
    reader = come(stage, "c")
    reader.subscribe("a/#", "+", qos=1)
    reader.close()
    before = [b"before %d" % number for number in range(10)]
    publish(stage, "a/b", *before)
    come(stage, "c", "spark", receive_maximum=1).close()
    after = [b"after %d" % number for number in range(100)]
    publish(stage, "a/b", *after)
    reader = come(stage, "c", "spark")
    got = drained(stage, reader)
    assert list(dict.fromkeys(got)) == before + after


def test_a_class_that_changes_reaches_many_subscriptions_and_system_like_topics() -> None:
    stage = staged(queue_messages_max=3)
    reader = come(stage, "c", receive_maximum=1)
    topics = [f"t/{number}" for number in range(300)]
    reader.subscribe(*topics, "$x/+", "t/+/#", qos=1)
    publisher = stage.connect("p")
    for topic in (*topics, "$x/1"):
        publisher.publish(topic, b"planned as for a device", qos=0)
    reader.close()
    reader = come(stage, "c", "spark")
    for topic in (*topics, "$x/1"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert store_of(stage).count(AppendToLog) == len(topics) + 1


def test_an_application_may_subscribe_into_the_past_of_what_was_logged() -> None:
    stage = staged()
    other = come(stage, "app-0")
    other.subscribe("#", qos=1)
    publish(stage, "a", b"1", b"2")
    stage.advance(1)
    reader = come(stage, "app-1")
    suback = subscribe(reader, "a", -10_000, qos=1)
    assert suback.reason_codes == (1,)
    stage.advance(0.5)
    assert payloads(reader) == [b"1", b"2"]


# --- kept by the store ---------------------------------------------------------------------------


def test_a_store_that_keeps_their_queues_gets_all_and_bounds_hold_for_devices_only() -> None:
    rules = parse_toml(
        '[roles.r]\nusers = ["*"]\nsubscribe = ["#"]\npublish = ["#"]\n'
        "queue_messages_max = 5\nanonymous = true\n",
        "acl.toml",
    )
    stage = staged(StoreApart(), Hooks(checker=SaidNames(), rules=rules), queue_messages_max=10)
    for client_id in ("app-1", "c"):
        reader = come(stage, client_id, "ann")
        reader.subscribe("a/#", qos=1)
        reader.close()
    sent = [b"%d" % number for number in range(50)]
    publish(stage, "a/b", *sent)
    assert stage.node.counters.dropped[Reason.QUEUE_MESSAGES] == 45
    application = stage.node.registry.sessions["app-1"]
    assert application.queue.count == 50
    assert stage.node.state.disk_queue_budget.holders_count == 1
    stage.restart()
    application = stage.node.registry.sessions["app-1"]
    assert application.queue.count == 50
    publish(stage, "a/b", b"more")
    reader = come(stage, "app-1", "ann")
    assert drained(stage, reader) == [*sent, b"more"]
    assert application.queue.size_bytes == 0
    reader.close()
    stage.node.hooks.rules = None
    settings = stage.node.settings.model_dump()
    settings["session"] |= {"application_client_ids": (), "bound_to_user": False}
    publish(stage, "a/b", *sent)
    stage.__init__(  # type: ignore[misc]
        Settings.model_validate(settings), store=stage.store, now_s=stage.now_s
    )
    reader = come(stage, "app-1", receive_maximum=1)
    reader.close()
    publish(stage, "a/b", b"full")  # Queues are looked through: messages may have expired.
    before = stage.node.counters.dropped[Reason.QUEUE_MESSAGES]
    publish(stage, "a/b", b"no room")
    assert stage.node.counters.dropped[Reason.QUEUE_MESSAGES] == before + 2
    assert drained(stage, come(stage, "app-1")) == sent
    assert stage.node.state.disk_queue_budget.used_bytes == (
        stage.node.registry.sessions["c"].queue.size_bytes
    )


# --- whatever happens ----------------------------------------------------------------------------


class Changing(AgainstLedger):
    """As `AgainstLedger`, and each time a client comes it may be of the other class."""

    @initialize(threshold=st.sampled_from([0, 2]))
    def start(self, threshold: int) -> None:
        settings = {"session": PATTERNS | {"log_threshold": threshold}}
        self.stage = Stage(settings, store=CountingStore())
        self.users = dict.fromkeys(CLIENTS, "spark")
        self.clients: dict[str, Client] = {}
        self.owed: dict[str, list[bytes]] = {name: [] for name in CLIENTS}
        self.got: dict[str, list[tuple[bytes, bool]]] = {name: [] for name in CLIENTS}
        self.number = 0
        for name, filter in zip(CLIENTS, ("#", "a/#", "+"), strict=True):
            client = come(self.stage, name, "spark", receive_maximum=3)
            client.subscribe(filter, qos=2)
            self.clients[name] = client
        self.publisher = self.stage.connect("p")

    @rule(name=st.sampled_from(CLIENTS))
    def come(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = come(self.stage, name, self.users[name], receive_maximum=3)

    @rule(name=st.sampled_from(CLIENTS), user=st.sampled_from(["spark", "hadoop"]))
    def change_class(self, name: str, user: str) -> None:
        """A connected client is taken over."""
        if name in self.clients:
            self._take(name, self.clients.pop(name))
        self.users[name] = user
        self.come(name)


def test_all_that_is_owed_comes_in_order_whatever_the_class_becomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_readers, "PAGE_MAX", 4)
    monkeypatch.setattr(log_readers, "TAIL_MAX", 3)
    monkeypatch.setattr(log_readers, "QUEUE_MAX", 3)
    monkeypatch.setattr("flowguard.node.publish.plans.WIDE_DELIVERIES", 1)
    monkeypatch.setattr("flowguard.node.publish.plans.DELIVERIES_PIECE", 1)
    run_state_machine_as_test(Changing)


def test_it_falls_behind_and_changes_class_on_a_disk(tmp_path: Path) -> None:
    """RocksDB, and processes that find the class, queue and place there."""

    def opened() -> RocksStore:
        options = StoreSettings(durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB)
        return RocksStore(
            tmp_path / "s", options, wall_s=lambda: 1_700_000_000.0, random_node=lambda: 7
        )

    store = opened()
    stage = staged(store, queue_messages_max=10)
    come(stage, "c", "spark", receive_maximum=1).subscribe("a/#", qos=1)
    sent = [b"%d" % number for number in range(100)]
    publish(stage, "a/b", *sent[:50])
    store.close()
    store = opened()
    stage = staged(store, queue_messages_max=10)
    assert class_of(stage, "c") == "application"
    publish(stage, "a/b", *sent[50:])
    come(stage, "c", "hadoop", receive_maximum=1)
    store.close()
    store = opened()
    stage = staged(store, queue_messages_max=10)
    assert class_of(stage, "c") == "device"
    reader = come(stage, "c", "hadoop")
    got = drained(stage, reader)
    assert list(dict.fromkeys(got)) == sent
    store.close()


def test_only_the_connect_that_changes_it_stores_the_class_anew() -> None:
    stage = staged()
    come(stage, "c").close()
    come(stage, "c", "spark")
    said = [op.is_application for op in store_of(stage).ops if isinstance(op, PutSession)]
    assert said == [False, True]
