"""Rolling restart of three nodes under load: is anything lost, and for how long is a client away?

    python -m tests.torture.rolling --clients 3000 --how drain

Each client has a durable session, a subscription, and a partner to which it publishes numbers at
QoS 1; one in two speaks MQTT 3.1.1. First they publish as fast as they are acknowledged, which
gives the capacity. Then they publish a share of it, and one node after the other ends and starts
again. A client that is disconnected dials the next node after 0 to 1 s.
"""

import json
import os
import socket
import tempfile
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from select import EPOLLIN, EPOLLOUT, epoll
from signal import SIGKILL, SIGTERM
from subprocess import DEVNULL
from typing import Annotated, Any
from urllib.request import urlopen

import typer

from benchmarks.brokers import free_ports
from flowguard.codec import PacketDecoder, encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Puback, Subscribe
from flowguard.types import MQTT_5, MQTT_311, Properties, Publish, SubscriptionOptions
from tests.interop.broker import start
from tests.support.reaper import reap_at_the_end
from tests.support.redis_server import ALWAYS, redis_server
from tests.torture.nodes import free_block
from tests.torture.wire import HOST

NODES, SHARDS = 3, 6
SPAN_S = 60.0
"""Maximum wait for anything, seconds."""
DIAL_S = 1.0
CONNACK_S = 10.0
SEEN_S = 0.25
KEPT = Properties(session_expiry_interval=3_600)
DUP = 8


class RollingNode:
    def __init__(self, folder: Path, redis_url: str, shards_max: int, source: str) -> None:
        folder.mkdir()
        self._folder, self._log = folder, folder / "log"
        self.port, self.http = free_ports(2)
        self.name = f"{HOST}:{free_block(2 * SHARDS)}"
        self._words = (
            *("serve", "--store", "redis", "--redis-url", redis_url, "--cluster", self.name),
            *("--workers", str(shards_max), "--data", str(folder / "data")),
            *("--listen", f"{HOST}:{self.port}", "--http", f"{HOST}:{self.http}"),
        )
        self._environment = {
            "FLOWGUARD_CLUSTER__SHARDS": str(SHARDS),
            "FLOWGUARD_NODE__SERVER_REFERENCE": f"{HOST}:{self.port}",
        }
        self._first = {"PYTHONPATH": source} if source else {}
        self.process: Any = None

    def start(self) -> None:
        """Start it; the first time with other sources if there are some."""
        environment, self._first = self._environment | self._first, {}
        with self._log.open("a") as log:
            self.process = start(*self._words, environment=environment, stderr=log)

    def get(self, path: str) -> Any:
        with urlopen(f"http://{HOST}:{self.http}{path}", timeout=5) as answer:
            return json.load(answer)

    def table(self) -> Any:
        with suppress(OSError):
            return self.get("/cluster")
        return None

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.communicate()


class RollingClient:
    def __init__(self, fleet: "Fleet", number: int) -> None:
        self._fleet = fleet
        self.number = number
        self._version = (MQTT_5, MQTT_311)[number % 2]
        self._partner = (number + fleet.count // 2) % fleet.count
        self._sock: socket.socket | None = None
        self._decoder = PacketDecoder(65_536, self._version, "client")
        self._unsent = b""
        self._place = number % NODES
        self._dialled_s = 0.0
        self.is_connected = False
        self.is_subscribed = False
        self.away_since_s = 0.0
        self.away_max_s = 0.0
        self.ends = 0
        self.next_number = 0
        self.unacknowledged: deque[int] = deque()
        self.received: set[int] = set()

    # --- connection ------------------------------------------------------------------------------

    def dial(self, now_s: float) -> None:
        if self._sock is not None:
            return
        self._place = (self._place + 1) % NODES
        self._dialled_s = now_s
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((HOST, self._fleet.ports[self._place]))
        self._sock = sock
        self._decoder = PacketDecoder(65_536, self._version, "client")
        self._fleet.clients[sock.fileno()] = self
        properties = KEPT if self._version == MQTT_5 else Properties()
        connect = Connect(
            f"r{self.number}", self._version, clean_start=False, properties=properties
        )
        self._unsent = encode(connect, self._version)
        self._fleet.epoll.register(sock.fileno(), EPOLLIN | EPOLLOUT)
        self._fleet.at(now_s + CONNACK_S, self._check)

    def _check(self, now_s: float) -> None:
        if not self.is_connected and self._sock and now_s - self._dialled_s >= CONNACK_S - 0.01:
            self._fleet.timeouts += 1
            self._lost(now_s)

    def ready(self, events: int, now_s: float) -> None:
        assert self._sock is not None
        try:
            if events & ~EPOLLOUT:
                data = self._sock.recv(65_536)
                if not data:
                    self._lost(now_s)
                    return
                self._decoder.feed(data)
                while self._sock is not None and (packet := self._decoder.next()) is not None:
                    self._receive(packet, now_s)
            self._flush()
        except BlockingIOError:
            pass
        except OSError:
            self._lost(now_s)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        with suppress(OSError):  # Its end is read later.
            self._flush()

    def _flush(self) -> None:
        if self._sock is None:
            return
        if self._unsent:
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        wanted = EPOLLIN | EPOLLOUT if self._unsent else EPOLLIN
        self._fleet.epoll.modify(self._sock.fileno(), wanted)

    def _lost(self, now_s: float) -> None:
        assert self._sock is not None
        self._fleet.epoll.unregister(self._sock.fileno())
        del self._fleet.clients[self._sock.fileno()]
        self._sock.close()
        self._sock = None
        if self.is_connected:
            self.is_connected = False
            self.away_since_s = now_s
            self.ends += 1
            self._fleet.connected -= 1
        self._fleet.at(now_s + self._fleet.random.uniform(0, DIAL_S), self.dial)

    def _receive(self, packet: object, now_s: float) -> None:
        if isinstance(packet, Connack):
            if packet.reason_code:
                self._fleet.rejected[packet.reason_code] = (
                    self._fleet.rejected.get(packet.reason_code, 0) + 1
                )
                self._lost(now_s)
                return
            self._accepted(now_s, is_present=packet.session_present)
        elif isinstance(packet, Puback):
            if packet.packet_id - 2 in self.unacknowledged:
                self.unacknowledged.remove(packet.packet_id - 2)
                self._fleet.acknowledged += 1
                if self._fleet.is_full:
                    self.publish(now_s)
        elif isinstance(packet, Publish):
            self.received.add(int(packet.payload))
            self._send(encode(Puback(packet.packet_id), self._version))
        elif isinstance(packet, Disconnect):
            code = packet.reason_code
            self._fleet.codes[code] = self._fleet.codes.get(code, 0) + 1
            reference = packet.properties.server_reference
            if reference:
                port = int(reference.rpartition(":")[2])
                self._place = self._fleet.ports.index(port) - 1

    def _accepted(self, now_s: float, *, is_present: bool) -> None:
        self.is_connected = True
        self._fleet.connected += 1
        if self.away_since_s:
            self.away_max_s = max(self.away_max_s, now_s - self.away_since_s)
        if self.is_subscribed and not is_present:
            self._fleet.findings.append(f"r{self.number} has lost its session")
        if not self.is_subscribed:
            topic = f"r/{self.number}"
            self._send(encode(Subscribe(1, ((topic, SubscriptionOptions(1)),)), self._version))
            self.is_subscribed = True
        for number in self.unacknowledged:
            self._publish(number, dup=True)

    # --- messages --------------------------------------------------------------------------------

    def publish(self, now_s: float) -> None:
        """Publish the next number, if fewer than 10 are unacknowledged."""
        if self.is_connected and len(self.unacknowledged) < 10 and not self._fleet.is_over:
            number = self.next_number
            self.next_number += 1
            self.unacknowledged.append(number)
            self._publish(number, dup=False)
        if self._fleet.period_s and not self._fleet.is_full and not self._fleet.is_over:
            self._fleet.at(now_s + self._fleet.period_s, self.publish)

    def _publish(self, number: int, *, dup: bool) -> None:
        message = Publish(f"r/{self._partner}", b"%d" % number, 1, packet_id=number + 2)
        frame = encode(message, self._version)
        self._send(bytes((frame[0] | DUP,)) + frame[1:] if dup else frame)


class Fleet:
    def __init__(self, count: int, ports: list[int], seed: int) -> None:
        self.count, self.ports = count, ports
        self.random = Random(seed)
        self.epoll = epoll()
        self.clients: dict[int, RollingClient] = {}
        self._due: list[tuple[float, int, Any]] = []
        self._number = 0
        self.connected = self.acknowledged = self.timeouts = 0
        self.rejected: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.findings: list[str] = []
        self.is_full = self.is_over = False
        self.period_s = 0.0
        self.all = [RollingClient(self, number) for number in range(count)]

    def at(self, when_s: float, act: Any) -> None:
        self._number += 1
        heappush(self._due, (when_s, self._number, act))

    def turns(self, until: Any, most_s: float) -> bool:
        """Run until `until` returns True; return False if that takes longer than `most_s`."""
        end_s = time.monotonic() + most_s
        while not until():
            now_s = time.monotonic()
            if now_s > end_s:
                return False
            while self._due and self._due[0][0] <= now_s:
                heappop(self._due)[2](now_s)
            for fd, events in self.epoll.poll(0.01):
                client = self.clients.get(fd)
                if client is not None:
                    client.ready(events, now_s)
        return True

    def wait(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.turns(lambda: time.monotonic() >= end_s, seconds + 1)


class Watch(threading.Thread):
    """Reads the gates of all nodes, until `is_over`."""

    def __init__(self, nodes: list[RollingNode]) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self.is_over = False
        self.above = 0
        """Number of readings in which a gate had more CONNECTs in process than its limit."""
        self.readings = self.in_process_max = self.waiting_max = 0

    def run(self) -> None:
        while not self.is_over:
            for node in self._nodes:  # The first one that answers knows the shards of all nodes.
                with suppress(OSError):
                    workers = node.get("/status")["workers"]
                    self._read([each for each in workers if each is not None])
                    break
            time.sleep(SEEN_S)

    def _read(self, workers: list[Any]) -> None:
        for worker in workers:
            gate = worker["gate"]
            self.readings += 1
            self.above += gate["in_process"] > gate["limit"]
            self.in_process_max = max(self.in_process_max, gate["in_process"])
            self.waiting_max = max(self.waiting_max, gate["buffered"]["used"])


def is_whole(nodes: list[RollingNode]) -> bool:
    tables = [node.table() for node in nodes]
    if any(table is None or table["down"] for table in tables):
        return False
    if any(len(table["nodes"][node.name]["shards"]) != 2 for table in tables for node in nodes):
        return False
    for node in nodes:
        try:
            with urlopen(f"http://{HOST}:{node.http}/ready", timeout=5):
                pass
        except OSError:
            return False
    return True


def restart(fleet: Fleet, nodes: list[RollingNode], node: RollingNode, how: str) -> None:
    """Let one node end and start again, and wait until all nodes have equal parts."""
    if how == "drain":
        url = f"http://{HOST}:{node.http}"
        command = start("cluster", "drain", node.name, "--url", url, stderr=DEVNULL)
        assert fleet.turns(lambda: command.poll() is not None, 5 * SPAN_S)
        print(f"  {command.communicate()[0].strip()}", flush=True)
    node.process.send_signal(SIGKILL if how == "kill" else SIGTERM)
    assert fleet.turns(lambda: node.process.poll() is not None, 5 * SPAN_S), "it does not end"
    node.process.communicate()
    node.start()
    seen = [0.0]

    def whole() -> bool:
        if time.monotonic() < seen[0] + 0.3:
            return False
        seen[0] = time.monotonic()
        return is_whole(nodes)

    assert fleet.turns(whole, 5 * SPAN_S), "the nodes do not get equal parts"


def main(
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 3_000,
    how: Annotated[str, typer.Option(help="How a node ends: term, drain or kill.")] = "term",
    share: Annotated[float, typer.Option(help="Load as a share of the capacity.")] = 0.5,
    rate: Annotated[float, typer.Option(help="Messages per second instead of that.")] = 0.0,
    source: Annotated[
        str, typer.Option(help="Sources of the version before a node restarts.")
    ] = "",
) -> None:
    """Exit code 1: a message or session was lost, or a gate had more than its limit."""
    folder = Path(tempfile.mkdtemp(prefix="rolling-"))
    reap_at_the_end()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder / "redis", ALWAYS))
        nodes = [RollingNode(folder / f"n{n}", redis.url, 4, source) for n in range(NODES)]
        for node in nodes:
            node.start()
            stack.callback(node.end)
        fleet = Fleet(clients, [node.port for node in nodes], 1)
        began_s = time.monotonic()
        assert fleet.turns(lambda: is_whole(nodes), 3 * SPAN_S), "the nodes do not start"
        print(f"whole after {time.monotonic() - began_s:.1f} s", flush=True)
        began_s = time.monotonic()
        for client in fleet.all:
            fleet.at(began_s + fleet.random.uniform(0, clients / 300), client.dial)
        assert fleet.turns(lambda: fleet.connected == clients, 2 * SPAN_S), "not all connect"
        print(f"{clients} connected after {time.monotonic() - began_s:.1f} s", flush=True)
        if not rate:
            rate = share * capacity(fleet)
        print(f"load: {rate:.0f} messages/s", flush=True)
        fleet.period_s = clients / rate
        for client in fleet.all:
            fleet.at(time.monotonic() + fleet.random.uniform(0, fleet.period_s), client.publish)
        fleet.wait(5.0)
        watch = Watch(nodes)
        watch.start()
        began_s = time.monotonic()
        for number, node in enumerate(nodes):
            restart(fleet, nodes, node, how)
            print(
                f"node {number} after {time.monotonic() - began_s:.1f} s, "
                f"{fleet.connected} connected",
                flush=True,
            )
        total_s = time.monotonic() - began_s
        fleet.turns(lambda: fleet.connected == clients, SPAN_S)
        fleet.is_over = True
        watch.is_over = True
        fleet.turns(lambda: is_quiet(fleet), 2 * SPAN_S)
        report(fleet, watch, total_s, how)
    print(f"directory: {folder}")
    raise typer.Exit(bool(fleet.findings or watch.above))


def capacity(fleet: Fleet) -> float:
    """Return the messages per second if each client has one on its way."""
    fleet.is_full = True
    for client in fleet.all:
        client.publish(0.0)
    fleet.wait(3.0)
    before, began_s = fleet.acknowledged, time.monotonic()
    fleet.wait(6.0)
    per_s = (fleet.acknowledged - before) / (time.monotonic() - began_s)
    fleet.is_full = False
    fleet.turns(lambda: is_quiet(fleet), SPAN_S)
    print(f"capacity: {per_s:.0f} messages/s", flush=True)
    return per_s


def is_quiet(fleet: Fleet) -> bool:
    return all(
        not client.unacknowledged and len(fleet.all[client._partner].received) == client.next_number
        for client in fleet.all
    )


def report(fleet: Fleet, watch: Watch, total_s: float, how: str) -> None:
    lost = sum(
        client.next_number - len(client.unacknowledged) - len(fleet.all[client._partner].received)
        for client in fleet.all
    )
    if lost > 0:
        fleet.findings.append(f"{lost} acknowledged messages lost")
    if fleet.connected != fleet.count:
        fleet.findings.append(f"{fleet.count - fleet.connected} clients are not back")
    away = sorted(client.away_max_s for client in fleet.all)
    ends = sum(client.ends for client in fleet.all)
    print(f"{how}: all three in {total_s:.1f} s; {sum(c.next_number for c in fleet.all)} messages")
    print(
        f"longest time without a connection: {away[-1]:.1f} s, median {away[len(away) // 2]:.1f}, "
        f"99 % {away[len(away) * 99 // 100]:.1f}; {ends / fleet.count:.1f} ends per client"
    )
    print(
        f"CONNECTs: {watch.in_process_max} in process and {watch.waiting_max} waiting at most in "
        f"one shard; above its limit in {watch.above} of {watch.readings} readings; "
        f"rejected {fleet.rejected}, unanswered {fleet.timeouts}; DISCONNECT {fleet.codes}"
    )
    print("\n".join(fleet.findings) or "nothing lost", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    typer.run(main)
