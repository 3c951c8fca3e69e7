"""Messages that are stored once, and the sessions that read them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from flowguard.codec.packets import Puback, Pubrec
from flowguard.config import MIB, StoreSettings
from flowguard.errors import CorruptionError
from flowguard.flow import Reason
from flowguard.node.applications import log_readers
from flowguard.node.publish.plans import WIDE_DELIVERIES
from flowguard.records import Append, AppendToLog
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from tests.support.readings import payloads
from tests.support.stage import Client, Stage, StoreWithLog


def rocks(folder: Path) -> RocksStore:
    options = StoreSettings(durability="os", disk_reserve_bytes=0, write_buffer_bytes=MIB)
    return RocksStore(folder, options, wall_s=lambda: 1_700_000_000.0, random_node=lambda: 7)


class CountingStore(StoreWithLog):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def commit(self, ops: Any) -> Any:
        self.ops += ops
        return super().commit(ops)

    def count(self, kind: type) -> int:
        return sum(isinstance(op, kind) for op in self.ops)


def staged(threshold: int = 1, **session: Any) -> Stage:
    return Stage({"session": {"log_threshold": threshold, **session}}, store=CountingStore())


def away(stage: Stage, *client_ids: str, filter: str = "a/#", qos: int = 2) -> None:
    for client_id in client_ids:
        client = stage.connect_durable(client_id)
        client.subscribe(filter, qos=qos)
        client.close()


def publish(stage: Stage, topic: str, *payloads: bytes, qos: int = 1, **more: Any) -> None:
    publisher = stage.connect("p")
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos, **more)


def store_of(stage: Stage) -> CountingStore:
    assert isinstance(stage.store, CountingStore)
    return stage.store


def test_a_message_for_many_that_are_away_is_one_write() -> None:
    stage = staged(10)
    names = [f"s{number}" for number in range(50)]
    away(stage, *names)
    publish(stage, "a/b", b"1", b"2")
    store = store_of(stage)
    assert (store.count(AppendToLog), store.count(Append)) == (2, 0)
    for name in names:
        assert payloads(stage.connect_durable(name)) == [b"1", b"2"]


def test_sessions_read_it_from_a_disk(tmp_path: Path) -> None:
    """RocksDB, and a second process that finds places and messages there."""
    settings = {"session": {"log_threshold": 2}}
    store = rocks(tmp_path / "s")
    stage = Stage(settings, store=store)
    away(stage, "s", "t", "u")
    here = stage.connect_durable("here")
    here.subscribe("a/#", qos=2)
    publish(stage, "a/b", b"1", b"2", qos=2)
    assert payloads(here) == [b"1", b"2"]
    first = stage.connect_durable("s", receive_maximum=1).publishes(acknowledge=False)
    stage.settle()
    store.close()
    store = rocks(tmp_path / "s")
    stage = Stage(settings, store=store)
    publish(stage, "a/b", b"3")
    again = stage.connect_durable("s", receive_maximum=1)
    (repeated,) = again.publishes(acknowledge=False)
    assert (repeated.payload, repeated.packet_id) == (first[0].payload, first[0].packet_id)
    again.close()
    assert payloads(stage.connect_durable("s")) == [b"1", b"2", b"3"]
    assert payloads(stage.connect_durable("t")) == [b"1", b"2", b"3"]
    assert payloads(stage.connect_durable("here")) == [b"3"]
    store.close()


def test_one_for_few_is_in_their_queues() -> None:
    stage = staged(3)
    away(stage, "s", "t")
    publish(stage, "a/b", b"1")
    store = store_of(stage)
    assert (store.count(AppendToLog), store.count(Append)) == (0, 2)
    assert payloads(stage.connect_durable("s")) == [b"1"]


def test_without_a_threshold_nothing_is_logged() -> None:
    stage = staged(0)
    away(stage, *[f"s{number}" for number in range(30)])
    publish(stage, "a/b", b"1")
    assert store_of(stage).count(AppendToLog) == 0


def test_who_is_connected_gets_it_at_once_and_only_once() -> None:
    stage = staged()
    here = stage.connect_durable("here")
    here.subscribe("a/#", qos=1)
    away(stage, "away")
    publish(stage, "a/b", b"1")
    assert payloads(here) == [b"1"]
    here.close()
    publish(stage, "a/b", b"2")
    assert payloads(stage.connect_durable("here")) == [b"2"]
    assert payloads(stage.connect_durable("away")) == [b"1", b"2"]


@pytest.mark.parametrize("before", [True, False], ids=["queue to log", "log to queue"])
def test_order_holds_when_a_topic_changes_between_queue_and_log(before: bool) -> None:
    stage = staged(3)
    away(stage, "s", "t")
    if not before:
        away(stage, "u")
    publish(stage, "a/b", b"1", b"2")
    if before:
        away(stage, "u")
    else:
        stage.connect("u").close()  # A clean start ends the session.
    publish(stage, "a/b", b"3", b"4")
    stage.restart()
    publish(stage, "a/b", b"5")
    assert payloads(stage.connect_durable("s")) == [b"1", b"2", b"3", b"4", b"5"]
    assert payloads(stage.connect_durable("t")) == [b"1", b"2", b"3", b"4", b"5"]


def test_options_of_the_subscription_hold_for_what_is_read() -> None:
    stage = staged()
    client = stage.connect_durable("s")
    client.subscribe("a/#", qos=1, identifier=7)
    client.subscribe("+/b", qos=2, identifier=9)
    client.subscribe("mine", qos=1, no_local=True)
    client.subscribe("zero", qos=0)
    client.close()
    publish(stage, "a/b", b"x", qos=2)
    publish(stage, "zero", b"not stored", qos=1)
    again = stage.connect_durable("s")
    (message,) = again.publishes()
    assert (message.payload, message.qos) == (b"x", 2)
    assert sorted(message.properties.subscription_identifiers) == [7, 9]


def test_its_own_messages_do_not_come_where_no_local_says_so() -> None:
    stage = staged()
    client = stage.connect_durable("s")
    client.subscribe("a", qos=1, no_local=True)
    away(stage, "t", filter="a")
    client.publish("a", b"own", qos=1)
    client.close()
    publish(stage, "a", b"other")
    assert payloads(stage.connect_durable("s")) == [b"other"]
    assert payloads(stage.connect_durable("t")) == [b"own", b"other"]


def test_what_has_expired_meanwhile_is_not_read() -> None:
    stage = staged()
    away(stage, "s")
    publish(stage, "a", b"gone", message_expiry_interval=1)
    publish(stage, "a", b"kept", message_expiry_interval=100)
    stage.advance(2)
    assert payloads(stage.connect_durable("s")) == [b"kept"]
    assert stage.node.counters.dropped[Reason.MESSAGE_EXPIRED] == 1


def test_what_retention_has_dropped_is_counted() -> None:
    stage = staged()
    away(stage, "s")
    publish(stage, "a", b"1", b"2", b"3")
    log = store_of(stage).log
    log.roll()
    log.drop(1)
    publish(stage, "a", b"4")
    assert payloads(stage.connect_durable("s")) == [b"4"]
    assert stage.node.counters.dropped == {Reason.LOG_RETENTION: 3}


def test_replay_joins_real_time_without_a_gap() -> None:
    """Messages are published while the last page is on its way, committed and not."""
    stage = staged()
    away(stage, "s")
    publisher = stage.connect("p")
    publisher.publish("a", b"1", qos=1)
    stage.hold_fetches = True
    client = stage.connect_durable("s")
    publisher.publish("a", b"2", qos=1)
    stage.hold_replays = True
    stage.release_fetches()
    stage.hold_commits = True
    publisher.publish("a", b"3", qos=1)
    stage.hold_replays = False
    stage.settle()
    publisher.publish("a", b"4", qos=1)
    stage.release_commits()
    stage.advance(1)
    assert payloads(client) == [b"1", b"2", b"3", b"4"]
    publisher.publish("a", b"5", qos=1)
    assert payloads(client) == [b"5"]


def test_replay_joins_real_time_in_a_process_that_found_a_log() -> None:
    stage = staged()
    away(stage, "s")
    publish(stage, "a", b"1")
    stage.restart()
    publish(stage, "a", b"2")
    stage.hold_replays = True
    client = stage.connect_durable("s")
    publish(stage, "a", b"3")
    stage.hold_replays = False
    stage.advance(1)
    assert payloads(client) == [b"1", b"2", b"3"]


def test_who_subscribes_while_a_page_is_on_its_way_misses_nothing() -> None:
    """The page was asked for the filters of before; what it passed over is read again."""
    stage = staged()
    away(stage, "s")
    away(stage, "t")
    publish(stage, "a", b"1")
    stage.hold_fetches = True
    client = stage.connect_durable("s")
    client.subscribe("b", qos=1)
    publish(stage, "b", b"2", b"3")
    stage.release_fetches()
    publish(stage, "b", b"4")
    stage.advance(1)
    assert payloads(client) == [b"1", b"2", b"3", b"4"]


def test_a_long_replay_comes_in_bounded_pieces() -> None:
    stage = staged(queue_messages_max=20)
    away(stage, "s")
    publisher = stage.connect("p")
    numbers = [b"%d" % number for number in range(300)]
    for number in numbers:
        publisher.publish("a", number, qos=1)
    client = stage.connect_durable("s", receive_maximum=5)
    found: list[bytes] = []
    for _ in range(400):
        session = stage.node.registry.sessions["s"]
        assert session.queue.count <= 20
        found += payloads(client)
        stage.advance(0.1)
        if len(found) == 300:
            break
    assert found == numbers
    assert stage.node.counters.dropped == {}


def test_a_page_that_cannot_be_read_cuts_its_client_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = staged()
    away(stage, "s")
    publish(stage, "a", b"1")

    def damaged(*_: Any) -> Any:
        raise CorruptionError("it is")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "read_log", damaged)
        assert stage.connect_durable("s").is_closed
        assert stage.node.counters.pages_unreadable == 1
    assert payloads(stage.connect_durable("s")) == [b"1"]


@pytest.mark.slow
def test_fan_out_to_thousands_passes_by_who_reads_and_meets_who_comes() -> None:
    """A message takes several time slices: a client that leaves or joins meanwhile gets it once."""
    stage = staged()
    names = [f"s{number}" for number in range(WIDE_DELIVERIES + 200)]
    away(stage, *names[:700])
    clients = {}
    for name in names[700:]:
        clients[name] = stage.connect_durable(name)
        clients[name].subscribe("a/#", qos=2)
    publisher = stage.connect("p")
    publisher.publish("a/b", b"0", qos=1)
    stage.hold_chores = True
    publisher.publish("a/b", b"1", qos=1)
    for _ in range(5):  # All have been asked: 500 have a place, 700 were passed by.
        stage.node.state.chores.step(stage.now_s)
    clients.pop("s700").close()
    clients.pop("s1199").close()
    clients["s0"] = stage.connect_durable("s0")
    stage.hold_chores = False
    stage.settle()
    publisher.publish("a/b", b"2", qos=1)
    stage.advance(0.5)
    everything = [b"0", b"1", b"2"]
    found = {name: payloads(clients.get(name) or stage.connect_durable(name)) for name in names}
    assert found == dict.fromkeys(names, everything)


CLIENTS = ["s", "t", "u"]
TOPICS = st.sampled_from(["a", "a/b", "b"])


class AgainstLedger(RuleBasedStateMachine):
    """Everything each session is owed comes, in order, and at QoS 2 once; whatever happens."""

    @initialize(threshold=st.sampled_from([1, 2, 3]))
    def start(self, threshold: int) -> None:
        self.stage = staged(threshold)
        self.clients: dict[str, Client] = {}
        self.owed: dict[str, list[bytes]] = {name: [] for name in CLIENTS}
        self.got: dict[str, list[tuple[bytes, bool]]] = {name: [] for name in CLIENTS}
        self.number = 0
        for name, filter in zip(CLIENTS, ("#", "a/#", "+"), strict=True):
            client = stage_client(self.stage, name)
            client.subscribe(filter, qos=2)
            self.clients[name] = client
        self.publisher = self.stage.connect("p")

    @rule(topic=TOPICS, count=st.integers(1, 4), qos=st.integers(1, 2))
    def publish(self, topic: str, count: int, qos: int) -> None:
        for _ in range(count):
            self.number += 1
            payload = b"%s %d %d" % (topic.encode(), qos, self.number)
            self.publisher.publish(topic, payload, qos=qos)
            for name, fits in (("s", True), ("t", topic[0] == "a"), ("u", "/" not in topic)):
                if fits:
                    self.owed[name].append(payload)

    @rule(name=st.sampled_from(CLIENTS))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            self._take(name, client)
            client.close()

    @rule(name=st.sampled_from(CLIENTS))
    def come(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = stage_client(self.stage, name)

    @rule(name=st.sampled_from(CLIENTS), acknowledge=st.booleans())
    def read(self, name: str, acknowledge: bool) -> None:
        if name in self.clients:
            self._take(name, self.clients[name], acknowledge=acknowledge)

    @rule()
    def crash(self) -> None:
        for name, client in self.clients.items():
            self._take(name, client)
        self.clients.clear()
        self.stage.restart()
        self.publisher = self.stage.connect("p")

    @rule(hold=st.sampled_from(["fetches", "replays"]))
    def hold(self, hold: str) -> None:
        if hold == "fetches":
            self.stage.hold_fetches = not self.stage.hold_fetches
        else:
            self.stage.hold_replays = not self.stage.hold_replays
        self.stage.settle()

    @rule(name=st.sampled_from(CLIENTS), topic=TOPICS, count=st.integers(1, 5))
    def come_while_there_is_more(self, name: str, topic: str, count: int) -> None:
        """A page is read, then more is logged, then the page is worked off."""
        self.leave(name)
        self.publish(topic, count, 1)
        self.stage.hold_fetches, self.stage.hold_replays = False, True
        self.come(name)
        self.publish(topic, count, 2)
        self.stage.hold_replays = False
        self.stage.settle()

    @rule(
        name=st.sampled_from(CLIENTS),
        topic=TOPICS,
        pieces=st.integers(0, 4),
        leaves=st.booleans(),
    )
    def leave_or_come_in_the_middle(self, name: str, topic: str, pieces: int, leaves: bool) -> None:
        """A client leaves or joins between two time slices of a message."""
        self.stage.hold_chores = True
        self.publish(topic, 1, 1)
        for _ in range(pieces):
            if len(self.stage.node.state.chores):
                self.stage.node.state.chores.step(self.stage.now_s)
        if leaves:
            self.leave(name)
        else:
            self.come(name)
        self.stage.hold_chores = False
        self.stage.settle()

    @rule(seconds=st.sampled_from([0.1, 0.5]))
    def pass_time(self, seconds: float) -> None:
        self.stage.advance(seconds)

    def _take(self, name: str, client: Client, *, acknowledge: bool = True) -> None:
        for message in client.publishes(acknowledge=acknowledge):
            if message.qos == 1 or not self._has(name, message):
                self.got[name].append((message.payload, message.dup))
        self.stage.settle()

    def _has(self, name: str, message: Publish) -> bool:
        """Sent again under its identifier: that is the client's to know."""
        return message.dup and message.payload in {payload for payload, _ in self.got[name]}

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.stage.hold_fetches = self.stage.hold_replays = False
        for name in CLIENTS:
            self.leave(name)
            self.come(name)
            for _ in range(200):
                self._take(name, self.clients[name])
                if len({payload for payload, _ in self.got[name]}) == len(self.owed[name]):
                    break
                self.stage.advance(0.2)
            self._take(name, self.clients[name])
            self._check(name)
        assert self.stage.node.state.moving.count == 0

    def _check(self, name: str) -> None:
        owed, got = self.owed[name], [payload for payload, _ in self.got[name]]
        assert not set(owed) - set(got), "nothing is missing"
        assert not set(got) - set(owed), "nothing strange comes"
        firsts = list(dict.fromkeys(got))
        for topic in (b"a ", b"a/b ", b"b "):
            of_topic = [each for each in owed if each.startswith(topic)]
            for qos in (b"1", b"2"):
                expected = [each for each in of_topic if each.split()[1] == qos]
                assert [each for each in firsts if each in expected] == expected
        again = [payload for payload, dup in self.got[name] if not dup]
        assert len(again) == len(set(again)), "nothing comes twice as if it were new"


def stage_client(stage: Stage, name: str) -> Client:
    return stage.connect_durable(name, receive_maximum=3)


def test_all_that_is_owed_comes_in_order_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_readers, "PAGE_MAX", 4)
    monkeypatch.setattr(log_readers, "TAIL_MAX", 3)
    monkeypatch.setattr("flowguard.node.publish.plans.WIDE_DELIVERIES", 1)
    monkeypatch.setattr("flowguard.node.publish.plans.DELIVERIES_PIECE", 1)
    monkeypatch.setattr("flowguard.session.outbound.fetch.MOVING_MAX", 2)
    run_state_machine_as_test(AgainstLedger)


def test_acknowledgements_out_of_order_and_releases_survive_a_crash() -> None:
    stage = staged()
    away(stage, "s")
    publish(stage, "a", b"1", b"2", b"3", qos=2)
    client = stage.connect_durable("s")
    sent = client.publishes(acknowledge=False)
    client.send(Pubrec(sent[1].packet_id))
    stage.restart()
    again = stage.connect_durable("s").publishes(acknowledge=False)
    assert [(each.payload, each.packet_id) for each in again] == [
        (each.payload, each.packet_id) for each in (sent[0], sent[2])
    ]
    stage = staged()
    away(stage, "s", qos=1)
    publish(stage, "a", b"1", b"2", b"3")
    client = stage.connect_durable("s")
    sent = client.publishes(acknowledge=False)
    client.send(Puback(sent[2].packet_id))
    client.close()
    again = stage.connect_durable("s").publishes(acknowledge=False)
    assert [each.payload for each in again] == [b"1", b"2"]
