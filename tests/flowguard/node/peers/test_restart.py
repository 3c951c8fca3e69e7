"""Nodes that end without a word, and start again with what their store has committed."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from flowguard.codec.packets import Puback, Pubrec, Will
from flowguard.config import StoreSettings
from flowguard.stores import MemoryStore, Store
from flowguard.stores.rocks import RocksStore
from tests.support.machine import Machine, answers

OPTIONS = StoreSettings(durability="os", disk_reserve_bytes=0)


@pytest.fixture(params=["memory", "rocks"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["CrashingMachine"]:
    machine = CrashingMachine("a", "b", folder=tmp_path if request.param == "rocks" else None)
    yield machine
    for store in machine.stores.values():
        if isinstance(store, RocksStore):
            store._engine.close()


class CrashingMachine(Machine):
    """A machine whose nodes end without closing their stores."""

    def __init__(self, *names: str, folder: Path | None) -> None:
        """`folder` is the place of the RocksDB stores, or None for stores in memory."""
        self._folder = folder
        super().__init__(*names, store=self.open)

    def open(self, name: str) -> Store:
        if self._folder is None:
            return MemoryStore()
        return RocksStore(self._folder / name, OPTIONS, wall_s=lambda: 1.7e9, random_node=lambda: 7)

    def kill(self, name: str, *, is_noticed: bool = True) -> None:
        super().kill(name, is_noticed=is_noticed)
        store = self.stores[name]
        if isinstance(store, RocksStore):
            store._engine.close()
            self.stores[name] = self.open(name)


def test_qos_1_waits_for_a_peer_that_is_down(machine: CrashingMachine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=1)
    publisher = machine["a"].connect("p")
    machine.kill("b")
    publisher.publish("t", b"x", qos=1)
    assert answers(publisher, Puback) == []
    machine.start("b")
    machine.advance(0.2)
    assert len(answers(publisher, Puback)) == 1
    again = machine["b"].connect_durable("s")
    assert [each.payload for each in again.publishes()] == [b"x"]


def test_owed_message_survives_its_node(machine: CrashingMachine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)
    publisher = machine["a"].connect("p")
    machine.cut.add("b")
    machine.drop_links("b")
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=2)
    assert len(answers(publisher, Pubrec)) == 3
    machine.kill("a")
    machine.start("a")
    again = machine["a"].connect("p")
    machine.cut.clear()
    machine.advance(0.2)
    again.publish("t", b"3", qos=2)
    assert [each.payload for each in subscriber.publishes()] == [b"0", b"1", b"2", b"3"]


def test_owed_message_enters_a_queue_once_if_both_nodes_end(machine: CrashingMachine) -> None:
    """The peer has it, and what the answer of the peer settles is lost."""
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)
    subscriber.close()
    publisher = machine["a"].connect("p")
    machine.is_carrying = False
    publisher.publish("t", b"x", qos=2)
    assert len(answers(publisher, Pubrec)) == 1
    machine["a"].hold_commits = True
    machine.is_carrying = True
    machine.settle()
    assert machine["a"].mesh.outgoing["b"].messages_count == 0
    machine.kill("b")
    machine.kill("a")
    machine.start("b")
    machine.start("a")
    machine.advance(0.2)
    again = machine["b"].connect_durable("s")
    assert [each.payload for each in again.publishes()] == [b"x"]


def test_addresses_grow_over_restarts(machine: CrashingMachine) -> None:
    """Each message after a restart has a higher address than the mark that the peer has."""
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)
    for number in range(4):
        publisher = machine["a"].connect("p")
        publisher.publish("t", b"%d" % number, qos=2)
        machine.kill("a" if number % 2 else "b")
        machine.start("a" if number % 2 else "b")
        machine.advance(0.2)
        subscriber = machine["b"].connect_durable("s")
        assert [each.payload for each in subscriber.publishes()] == [b"%d" % number]


def test_suback_does_not_wait_for_a_dead_peer(machine: CrashingMachine) -> None:
    machine.kill("b")
    machine["a"].connect("s").subscribe("t", qos=1)


def test_stored_subscription_is_known_to_peers_after_a_start(machine: CrashingMachine) -> None:
    machine["b"].connect_durable("s").subscribe("t", qos=1)
    for name in ("a", "b"):
        machine.kill(name)
    for name in ("a", "b"):
        machine.start(name)
    machine.advance(0.2)
    machine["a"].connect("p").publish("t", b"x", qos=1)
    again = machine["b"].connect_durable("s")
    assert [each.payload for each in again.publishes()] == [b"x"]


def test_message_for_a_peer_that_was_never_met_waits_for_it(machine: CrashingMachine) -> None:
    """Both have restarted, and the node does not know the filters of its peer."""
    machine["b"].connect_durable("s").subscribe("t", qos=1)
    machine.kill("b")
    machine.kill("a")
    machine.start("a")
    publisher = machine["a"].connect("p")
    publisher.publish("t", b"x", qos=1)
    publisher.publish("unknown", b"x", qos=1)
    assert answers(publisher, Puback) == []
    machine.start("b")
    machine.advance(0.2)
    assert len(answers(publisher, Puback)) == 2
    again = machine["b"].connect_durable("s")
    assert [each.payload for each in again.publishes()] == [b"x"]


def test_will_at_qos_1_reaches_a_session_of_a_peer_once(machine: CrashingMachine) -> None:
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("w", qos=1)
    client = machine["a"].connect("p", will=Will("w", b"gone", qos=1))
    machine.cut.add("b")
    machine.drop_links("b")
    client.close()
    machine.kill("a")
    machine.start("a")
    machine.cut.clear()
    machine.advance(0.2)
    assert [each.payload for each in subscriber.publishes()] == [b"gone"]


def test_peer_takes_owed_messages_of_a_node_that_runs_on_an_older_copy(tmp_path: Path) -> None:
    """The copy was made before the peer took what was owed then."""
    machine = CrashingMachine("a", "b", folder=tmp_path / "stores")
    subscriber = machine["b"].connect_durable("s")
    subscriber.subscribe("t", qos=2)

    def publish(payload: bytes) -> None:
        publisher = machine["a"].connect("p")
        publisher.publish("t", payload, qos=2)
        assert len(answers(publisher, Pubrec)) == 1

    publish(b"0")
    machine.kill("a")
    copy = tmp_path / "copy"
    copytree(tmp_path / "stores" / "a", copy)
    machine.start("a")
    publish(b"1")
    machine.kill("a")
    store = machine.stores["a"]
    assert isinstance(store, RocksStore)
    store._engine.close()
    rmtree(tmp_path / "stores" / "a")
    copytree(copy, tmp_path / "stores" / "a")
    machine.stores["a"] = machine.open("a")
    machine.start("a")
    publish(b"2")
    assert [each.payload for each in subscriber.publishes()] == [b"0", b"1", b"2"]
    for each in machine.stores.values():
        assert isinstance(each, RocksStore)
        each._engine.close()
