"""Random schedules of three nodes: messages, crashes, cut links, pauses, slow commits.

Invariants: an acknowledged message reaches each session that was subscribed; QoS 2 once; the
messages of one publisher, topic and QoS arrive in order; all nodes have the same retained messages.
An acknowledged message reaches a member of each shared subscription, with QoS 2 one member once.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from flowguard.codec.packets import Puback, Pubcomp, Pubrec, Pubrel
from flowguard.types import Publish
from tests.support.machine import Machine, answers
from tests.support.stage import Client

NAMES = ("a", "b", "c")
TOPICS = ("t/0", "t/1")
MEMBERS = {"g": ("b", "c"), "h": ("c",)}
"""Nodes with a member of each shared subscription."""
STEPS = 120


@dataclass
class Publishing:
    """A client that repeats what is not acknowledged, as MQTT asks for."""

    name: str
    node: str
    client: Client | None = None
    unacknowledged: dict[int, Publish] = field(default_factory=dict)
    """By packet identifier, in order."""
    released: set[int] = field(default_factory=set)
    acknowledged: list[bytes] = field(default_factory=list)
    next_id: int = 1

    def connect(self, machine: Machine) -> None:
        if self.node in machine.workers and self.client is None:
            worker = machine[self.node]
            if worker.hold_commits or worker.is_paused:
                return
            self.client = worker.connect_durable(self.name)
            for packet_id, message in list(self.unacknowledged.items()):
                if packet_id in self.released:
                    self.client.send(Pubrel(packet_id))
                else:
                    repeated = Publish(
                        message.topic, message.payload, message.qos, dup=True, packet_id=packet_id
                    )
                    self.client.send(repeated)

    def publish(self, topic: str, qos: int, number: int) -> None:
        if self.client is None or len(self.unacknowledged) > 15:
            return
        message = Publish(topic, f"{self.name} {number}".encode(), qos, packet_id=self.next_id)
        self.next_id += 1
        self.unacknowledged[message.packet_id] = message
        self.client.send(message)

    def read(self) -> None:
        if self.client is None:
            return
        for puback in answers(self.client, Puback):
            self.acknowledged.append(self.unacknowledged.pop(puback.packet_id).payload)
        for pubrec in answers(self.client, Pubrec):
            if pubrec.packet_id not in self.released:
                self.acknowledged.append(self.unacknowledged[pubrec.packet_id].payload)
                self.released.add(pubrec.packet_id)
            self.client.send(Pubrel(pubrec.packet_id))
        for pubcomp in answers(self.client, Pubcomp):
            self.unacknowledged.pop(pubcomp.packet_id, None)
            self.released.discard(pubcomp.packet_id)


class Schedule:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine = Machine(*NAMES)
        self.publishers = [Publishing(f"p-{name}", name) for name in NAMES]
        self.sessions = {f"s-{name}": name for name in NAMES}
        self.received: dict[str, list[tuple[int, bytes]]] = {each: [] for each in self.sessions}
        for session, name in self.sessions.items():
            client = self.machine[name].connect_durable(session)
            client.subscribe("t/#", qos=2)
            client.close()
        for group, names in MEMBERS.items():
            for name in names:
                client = self.machine[name].connect_durable(f"{group}-{name}")
                client.subscribe(f"$share/{group}/t/#", qos=2)
                client.close()
        self.number = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.heal()
        self.check()

    def step(self) -> None:
        machine, random = self.machine, self.random
        action = random.random()
        name = random.choice(NAMES)
        worker = machine.workers.get(name)
        if action < 0.6:
            self.publish()
        elif action < 0.68:
            machine.advance(0.1)
        elif action < 0.76:
            machine.is_carrying = not machine.is_carrying
            machine.settle()
        elif action < 0.8:
            machine.drop_links(name)
            machine.cut ^= {name}
        elif action < 0.88 and worker is not None:
            worker.hold_commits = not worker.hold_commits
            machine.settle()
        elif action < 0.92 and worker is not None:
            worker.is_paused = not worker.is_paused
            machine.settle()
        elif worker is not None:
            machine.kill(name, is_noticed=random.random() < 0.5)
            for publisher in self.publishers:
                if publisher.node == name:
                    publisher.client = None
        else:
            machine.start(name)

    def publish(self) -> None:
        publisher = self.random.choice(self.publishers)
        publisher.connect(self.machine)
        worker = self.machine.workers.get(publisher.node)
        if worker is None or worker.is_paused:
            return
        self.number += 1
        topic, qos = self.random.choice(TOPICS), self.random.choice((1, 2))
        publisher.publish(topic, qos, self.number)
        publisher.read()
        if self.random.random() < 0.2 and publisher.client is not None:
            retained = Publish(f"r/{self.random.randrange(4)}", b"%d" % self.number, retain=True)
            publisher.client.send(retained)

    def heal(self) -> None:
        machine = self.machine
        machine.is_carrying = True
        machine.cut.clear()
        for name in NAMES:
            if name not in machine.workers:
                machine.start(name)
        for worker in machine.workers.values():
            worker.is_paused = worker.hold_commits = False
        machine.settle()
        for _ in range(10):
            machine.advance(0.2)
            for publisher in self.publishers:
                publisher.connect(machine)
                publisher.read()

    def check(self) -> None:
        machine = self.machine
        for publisher in self.publishers:
            assert not publisher.unacknowledged, publisher
        for session, name in self.sessions.items():
            client = machine[name].connect_durable(session)
            messages = client.publishes()
            received = [each.payload for each in messages]
            for publisher in self.publishers:
                assert set(publisher.acknowledged) <= set(received), (session, publisher)
            once = [each.payload for each in messages if each.qos == 2]
            assert len(once) == len(set(once)), session
            self.check_order(messages)
        for group, names in MEMBERS.items():
            members = [machine[name].connect_durable(f"{group}-{name}") for name in names]
            messages = [each for member in members for each in member.publishes()]
            received = [each.payload for each in messages]
            for publisher in self.publishers:
                assert set(publisher.acknowledged) <= set(received), (group, publisher)
            once = [each.payload for each in messages if each.qos == 2]
            assert len(once) == len(set(once)), group
        found = []
        for worker in machine.workers.values():
            messages_of = worker.node.router.retained
            entries = {topic: messages_of.get(topic) for topic in messages_of.topics()}
            found.append(
                {topic: each.publish.payload for topic, each in entries.items() if each is not None}
            )
        assert found[0] == found[1] == found[2]
        for worker in machine.workers.values():
            assert all(not stream.messages_count for stream in worker.mesh.outgoing.values())

    def check_order(self, messages: list[Publish]) -> None:
        """First deliveries keep the order of a publisher per topic and QoS."""
        lasts: dict[tuple[bytes, str, int], int] = {}
        seen: set[bytes] = set()
        for message in messages:
            publisher, number = message.payload.split()
            if message.payload in seen:
                continue
            seen.add(message.payload)
            key = publisher, message.topic, message.qos
            assert lasts.get(key, 0) < int(number), (key, number)
            lasts[key] = int(number)


@pytest.mark.parametrize("seed", range(25))
def test_random_schedule_keeps_the_invariants(seed: int) -> None:
    Schedule(seed).run()
