"""`python -m benchmarks.kafka.groups`: what a message of a shared subscription costs where two
brokers have it together, and where one has it, in Kafka or in its log.

The generator is a Python program beside them: what is compared is processor time, not the clock.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from socket import create_connection, socket
from statistics import median
from typing import Annotated, Final

import typer

from benchmarks import machine
from benchmarks.brokers import Running
from benchmarks.kafka.brokers import PAYLOAD_BYTES, OnKafka, OnLog, kafka_server
from benchmarks.kafka.measures import kafka_s
from benchmarks.kafka.servers import Kafka
from benchmarks.runner import BadData
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet, Puback, Suback, Subscribe
from flowguard.types import MQTT_311, Publish, SubscriptionOptions

FILTER: Final = "$share/g/t/#"
PATTERN: Final = "app-*"
PUBLISHERS: Final = 24
MEMBERS: Final = 2
BURST: Final = 20
"""Messages of each publisher that are not acknowledged."""
PATIENCE_S: Final = 60.0
PACKET_BYTES: Final = 1_000_000
WARM_UP_S: Final = 2.0


class OnKafkaTogether(OnKafka):
    """One of several that have groups together."""

    name = "flowguard, a group of two brokers"

    def __init__(self, server: Kafka, groups: str) -> None:
        super().__init__(server, PATTERN)
        self._groups_prefix = groups

    def _settings(self) -> dict[str, dict[str, object]]:
        settings = super()._settings()
        settings["kafka"]["groups_prefix"] = self._groups_prefix
        return settings


class Client:
    """A blocking socket, and packets."""

    def __init__(self, port: int, client_id: str, *, lasts: bool) -> None:
        self.socket: socket = create_connection(("127.0.0.1", port), PATIENCE_S)
        self._decoder = PacketDecoder(PACKET_BYTES, MQTT_311, "client")
        self.send(Connect(client_id, MQTT_311, not lasts))
        self.expect(Connack)

    def send(self, *packets: Packet) -> None:
        self.socket.sendall(b"".join(encode(packet, MQTT_311) for packet in packets))

    def some(self) -> list[Packet]:
        """All packets that have come, one at least; none: the connection is over."""
        found: list[Packet] = []
        while not found:
            data = self.socket.recv(1 << 18)
            if not data:
                return []
            self._decoder.feed(data)
            while (packet := self._decoder.next()) is not None:
                found.append(packet)
        return found

    def expect(self, kind: type[Packet]) -> None:
        (packet,) = self.some()
        if not isinstance(packet, kind):
            raise BadData(f"{packet} instead of {kind.__name__}")


@dataclass(frozen=True)
class Cost:
    """Of messages with QoS 1, each in and out once."""

    messages: int
    """In and out."""
    again: int
    brokers_s: float
    """Processor time of all of them; and Kafka's."""
    kafka_s: float
    by_broker: tuple[int, ...]
    """What members of each have got."""

    @property
    def per_cpu_s(self) -> float:
        return self.messages / (self.brokers_s + self.kafka_s)

    def __str__(self) -> str:
        broker_us, kafka_us = (
            1e6 * each / self.messages for each in (self.brokers_s, self.kafka_s)
        )
        return (
            f"{self.messages:,} in and out, {self.again} again, by broker {self.by_broker}; "
            f"{broker_us:.1f} µs each of brokers, {kafka_us:.1f} of Kafka: "
            f"{self.per_cpu_s:,.0f} per CPU second"
        )


class Load:
    """Publishers and members, the same number on each broker."""

    def __init__(self, brokers: Sequence[Running]) -> None:
        self._brokers = brokers
        self._stops = threading.Event()
        self._got: list[set[bytes]] = [set() for _ in brokers]
        self._again = [0 for _ in brokers]
        self._sent = [0 for _ in brokers]
        self._members = [
            (index % len(brokers), self._client(index, f"app-{index}", lasts=True))
            for index in range(MEMBERS)
        ]
        for _, member in self._members:
            member.send(Subscribe(1, ((FILTER, SubscriptionOptions(1)),)))
            member.expect(Suback)
        self._publishers = [
            self._client(index, f"p-{index}", lasts=False) for index in range(PUBLISHERS)
        ]
        self._threads = [
            threading.Thread(target=self._consume, args=each, daemon=True) for each in self._members
        ]
        for thread in self._threads:
            thread.start()

    def _client(self, index: int, client_id: str, *, lasts: bool) -> Client:
        return Client(self._brokers[index % len(self._brokers)].port, client_id, lasts=lasts)

    def publish(self, seconds: float) -> None:
        """As fast as they can, until members have had all of it. Raises `BadData`."""
        end_s = time.monotonic() + seconds
        count_all = len(self._brokers)
        threads = [
            threading.Thread(
                target=self._publish, args=(index, self._publishers[index::count_all], end_s)
            )
            for index in range(count_all)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        limit_s = time.monotonic() + PATIENCE_S
        while self.come < self.sent:
            if time.monotonic() > limit_s:
                raise BadData(f"{self.come:,} of {self.sent:,} messages came")
            time.sleep(0.02)

    @property
    def sent(self) -> int:
        return sum(self._sent)

    @property
    def come(self) -> int:
        return sum(map(len, self._got))

    @property
    def again(self) -> int:
        return sum(self._again)

    @property
    def by_broker(self) -> tuple[int, ...]:
        return tuple(map(len, self._got))

    def _publish(self, index: int, clients: list[Client], end_s: float) -> None:
        padding = bytes(PAYLOAD_BYTES - 16)
        while time.monotonic() < end_s:
            for number, client in enumerate(clients):
                packets = []
                for packet_id in range(1, BURST + 1):
                    self._sent[index] += 1
                    payload = b"%6d%10d" % (index, self._sent[index]) + padding
                    packets.append(Publish(f"t/{number}", payload, 1, packet_id=packet_id))
                client.send(*packets)
            for client in clients:
                left = BURST
                while left:
                    some = client.some()
                    if not some:
                        raise BadData("a publisher was disconnected")
                    left -= len(some)

    def _consume(self, index: int, member: Client) -> None:
        got = self._got[index]
        while not self._stops.is_set():
            answers: list[Packet] = []
            try:
                for packet in member.some():
                    assert isinstance(packet, Publish)
                    if packet.payload in got:
                        self._again[index] += 1
                    got.add(packet.payload)
                    answers.append(Puback(packet.packet_id))
                if not answers:
                    return
                member.send(*answers)
            except OSError:
                return

    def close(self) -> None:
        self._stops.set()
        for client in [*self._publishers, *(member for _, member in self._members)]:
            client.socket.close()


def cost_of(running: Sequence[Running], server: Kafka | None, seconds: float) -> Cost:
    """Raises `BadData`."""
    load = Load(running)
    load.publish(WARM_UP_S)
    before = load.sent, load.again, spent_s(running), kafka_s(server), load.by_broker
    load.publish(seconds)
    brokers_s, servers_s = spent_s(running) - before[2], kafka_s(server) - before[3]
    by_broker = tuple(after - first for after, first in zip(load.by_broker, before[4], strict=True))
    load.close()
    messages = 2 * (load.sent - before[0])
    return Cost(messages, load.again - before[1], brokers_s, servers_s, by_broker)


def spent_s(running: Sequence[Running]) -> float:
    return sum(machine.cpu_s(each.pid) for each in running)


@contextmanager
def together(server: Kafka, groups: str, how_many: int) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        brokers = [OnKafkaTogether(server, groups) for _ in range(how_many)]
        yield [stack.enter_context(each.running(None, "kafka")) for each in brokers]


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Of each measurement.")] = 8.0,
    repeat: Annotated[int, typer.Option(min=1, help="Samples of each.")] = 2,
) -> None:
    """Messages with QoS 1 for a shared subscription of two applications, in and out, per second of
    processor time of brokers and Kafka."""
    numbers = count(1)
    named: dict[str, list[Cost]] = {}
    with kafka_server(1, None) as server:
        for _ in range(repeat):
            samples: list[tuple[str, Cost]] = []
            with OnLog(PATTERN).running(None, "kafka") as alone:
                samples.append(("one broker, its log", cost_of([alone], None, seconds)))
            with OnKafka(server, PATTERN).running(None, "kafka") as alone:
                samples.append(("one broker, a topic", cost_of([alone], server, seconds)))
            for how_many, name in ((1, "a group, one broker"), (2, "a group, two brokers")):
                with together(server, f"site{next(numbers)}", how_many) as found:
                    samples.append((name, cost_of(found, server, seconds)))
            for name, cost in samples:
                named.setdefault(name, []).append(cost)
                print(f"{name}: {cost}", flush=True)
    for name, costs in named.items():
        print(f"{name}: median {median(each.per_cpu_s for each in costs):,.0f} per CPU second")


if __name__ == "__main__":
    typer.run(main)
