"""A message, a session and a will leave no memory behind, even if the collector never runs.

The collector looks at young objects only, and not at all while nothing is allocated. So a reference
cycle for each message is a leak, and it counts as none of the node's memory.
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from flowguard.codec.packets import Will
from flowguard.stores import MemoryStore
from tests.support.stage import Client, Stage, StoreOnDisk

ROUNDS = 100
MESSAGE_BLOCKS = 5
"""Blocks of memory of one message: its delivery, the message, topic, payload and position.
(Caches of the interpreter grow for the first 400 rounds.)"""
QOS = (0, 1, 2)


class Load:
    """Clients of each kind; each round ends with no message left."""

    def __init__(self, store: MemoryStore) -> None:
        self.stage = stage = Stage({"session": {"queue_messages_max": 5}}, store=store)
        self.readers = [stage.connect(f"clean{qos}") for qos in QOS]
        self.durable = [stage.connect_durable(f"durable{qos}") for qos in QOS]
        self.members = [stage.connect(f"member{qos}") for qos in QOS]
        for qos in QOS:
            self.readers[qos].subscribe("plain/#", "will", "kept/+", qos=qos)
            self.durable[qos].subscribe("plain/#", qos=qos)
            self.members[qos].subscribe("$share/clean/plain/#", f"$share/{qos}/plain/#", qos=qos)
        for name, filter in (("away", "$share/durable/plain/#"), ("full", "plain/#")):
            away = stage.connect_durable(name)
            away.subscribe(filter, qos=1)
            self.leave(away)
        for qos in QOS:
            self.members[qos].subscribe("$share/durable/plain/#", qos=qos)
        self.publisher = stage.connect("publisher")

    def leave(self, client: Client) -> None:
        """The connection ends; a client of a stage and its connection refer to each other."""
        client.close()
        del client.connection

    def round(self) -> None:
        stage = self.stage
        will = Will("will", b"gone", 1)
        mortal = stage.connect("mortal", will=will)
        mortal.subscribe("plain/#", qos=1)
        comes_back = stage.connect_durable("comes-back")
        comes_back.subscribe("plain/#", "$share/durable/plain/#", qos=2)
        for qos in QOS:
            self.publisher.publish("plain/a", bytes(100), qos=qos)
            self.publisher.publish("plain/b", bytes(100), qos=qos, message_expiry_interval=1)
            self.publisher.publish("kept/a", bytes(100), qos=qos, retain=True)
        comes_back.publishes()
        self.leave(mortal)
        self.leave(comes_back)
        newcomer = stage.connect("newcomer")
        newcomer.subscribe("kept/#", qos=1)
        newcomer.publishes()
        newcomer.disconnect()
        del newcomer.connection
        stage.advance(1.1)
        for client in (*self.readers, *self.durable, *self.members, self.publisher):
            client.publishes()
            client.take()
            client.raw.clear()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The collector only runs when it is asked to."""
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("store", [MemoryStore, StoreOnDisk], ids=["memory", "disk"])
def test_mixed_load_leaves_nothing_in_memory(store: type[MemoryStore]) -> None:
    load = Load(store())
    load.rounds(4 * ROUNDS)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)  # The collector keeps garbage in `gc.garbage`.
    before = sys.getallocatedblocks()
    load.rounds(ROUNDS)
    gc.collect()  # This empties the free lists of the interpreter, too.
    grown = sys.getallocatedblocks() - before
    assert Counter(type(each).__qualname__ for each in gc.garbage) == {}
    assert grown < MESSAGE_BLOCKS * ROUNDS
