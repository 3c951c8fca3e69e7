"""Several nodes as one broker over a real Redis: take-over, a node that dies, one that leaves."""

import json
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from flowguard.codec.packets import Connack, Disconnect, Puback, Suback, Subscribe
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.workers.clients import Client, Machine, machine, names, stopped, tcp
from tests.interop.broker import PATIENCE_S, Broker, start
from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.nodes import free_block

pytestmark = pytest.mark.slow
SHARDS = 2
KEPT = Properties(session_expiry_interval=1_000)
KILLED = -signal.SIGKILL
RUNNING: list[tuple[Broker, int]] = []
"""The nodes of the present tests, each with the exit code that the test expects."""
LINK_IS_UP = re.compile(r'flowguard_link_down\{worker="\d",peer="worker-\d"\} 0.0')


def arguments_of(redis: RedisServer, port: int) -> list[str]:
    cluster = ["--cluster", f"127.0.0.1:{port}", "--workers", str(SHARDS)]
    return ["--store", "redis", "--redis-url", redis.url, *cluster]


@contextmanager
def node(
    folder: Path,
    redis: RedisServer,
    port: int,
    exit_code: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Machine]:
    """Run a node; `settings` are variables of its environment."""
    environment = {
        "FLOWGUARD_CLUSTER__SHARDS": str(SHARDS),
        "FLOWGUARD_NODE__SERVER_REFERENCE": f"node.example:{port}",
        **(settings or {}),
    }
    arguments = arguments_of(redis, port)
    with machine(folder, *arguments, environment=environment, exit_code=exit_code) as running:
        RUNNING.append((running.broker, exit_code))
        yield running
        RUNNING.remove((running.broker, exit_code))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait, unless a node has ended with another exit code than the test expects."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        for broker, exit_code in RUNNING:
            assert broker.process.poll() in (None, exit_code), broker.log.read_text()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_wait_ends_with_the_log_of_a_node_that_has_died(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("why it died")
    with start("--no-such-option") as ended:
        ended.communicate()
        RUNNING.append((Broker(ended, "", 0, log), 0))
        with pytest.raises(AssertionError, match="why it died"):
            wait_until(lambda: False)
        RUNNING.pop()


def shards_of(running: Machine, name: str) -> list[int]:
    found: dict[str, Any] = running.get("/cluster")
    shards: list[int] = found["nodes"].get(name, {"shards": []})["shards"]
    return shards


def is_ready(running: Machine, count: int) -> bool:
    with suppress(OSError):  # An error has the status 503.
        return running.text("/ready").strip() == f"{count} of {count} workers serve"
    return False


@contextmanager
def two_nodes(
    folder: Path,
    redis: RedisServer,
    exit_code: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Machine, Machine]]:
    """Yield nodes with one shard each; the first one ends with `exit_code`."""
    ports = [free_block(2 * SHARDS), free_block(2 * SHARDS)]
    with (
        node(folder / "a", redis, ports[0], exit_code, settings) as first,
        node(folder / "b", redis, ports[1], settings=settings) as second,
    ):
        for running in (first, second):
            wait_until(lambda running=running: is_ready(running, 1))
            wait_until(lambda running=running: not running.get("/cluster")["down"])
        yield first, second


def connect(running: Machine, name: str, *, clean_start: bool = False) -> tuple[Client, Connack]:
    """Connect to any node; a shard that is on its way may let the client wait or fail."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline_s
        stream = tcp(running.addresses[0])
        client = Client(stream, name, clean_start=clean_start, properties=KEPT)
        answer = client.read()
        if isinstance(answer, Connack) and answer.reason_code == ReasonCode.SUCCESS:
            return client, answer
        client.close()
        time.sleep(0.05)


def subscribe(client: Client, topic: str) -> None:
    client.send(Subscribe(1, ((topic, SubscriptionOptions(1)),)))
    assert client.read() == Suback(1, (1,))


def publish(client: Client, number: int) -> None:
    """Publish a number at QoS 1, and wait until it is acknowledged."""
    client.send(Publish("t", b"%d" % number, 1, packet_id=1 + number))
    answer = client.read()
    assert isinstance(answer, Puback)
    assert answer.packet_id == 1 + number
    assert answer.reason_code == ReasonCode.SUCCESS


def received(client: Client, count: int) -> list[int]:
    """Read and acknowledge messages until each of `count` numbers has come; return the numbers in
    the order of their first arrival."""
    found: dict[int, None] = {}
    while len(found) < count:
        packet = client.read()
        assert isinstance(packet, Publish), packet
        found.setdefault(int(packet.payload))
        client.send(Puback(packet.packet_id))
    return list(found)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine, Any]]:
    folder = tmp_path_factory.mktemp("cluster")
    with (
        redis_server(folder / "redis", ALWAYS) as redis,
        two_nodes(folder, redis) as (first, second),
    ):
        yield first, second, redis


Nodes = tuple[Machine, Machine, RedisServer]


def test_messages_reach_clients_of_all_shards_at_all_nodes(cluster: Nodes) -> None:
    first, second, _ = cluster
    subscribers = []
    for running in (first, second):
        for shard in range(SHARDS):
            (name,) = names(shard, 1, f"all-{running.broker.port}")
            client, _ = connect(running, name, clean_start=True)
            subscribe(client, "t")
            subscribers.append(client)
    publishers = [connect(running, f"from-{running.broker.port}")[0] for running in (first, second)]
    for number in range(20):
        publish(publishers[number % 2], number)
    for client in subscribers:
        assert sorted(received(client, 20)) == list(range(20))
    for client in (*subscribers, *publishers):
        client.close()


def test_status_shows_nodes_and_shards(cluster: Nodes) -> None:
    first, second, _ = cluster
    nodes = [running.get("/cluster")["node"] for running in (first, second)]
    words = ("cluster", "status", "--url", f"http://{first.http}")
    with start(*words) as command:
        printed, errors = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, errors
    rows = [line.split() for line in printed.splitlines() if "127.0.0.1" in line]
    assert [row[0] for row in rows[:2]] == sorted(nodes)
    assert sorted(row[6] for row in rows[:2]) == ["0", "1"]
    assert [row[:2] for row in rows[2:]] == [["0", "serves"], ["1", "serves"]]
    with start(*words, "--json") as command:
        printed, _ = command.communicate(timeout=PATIENCE_S)
    found = json.loads(printed)
    assert (found["down"], found["moving"]) == ([], [])
    assert found["nodes"].keys() == set(nodes)
    assert {node["http"] for node in found["nodes"].values()} == {
        f"http://{running.http}/" for running in (first, second)
    }
    for shard in found["shards"].values():
        assert shard["load"]["links_down"] == []
        assert shard["incarnation"] > 0


def test_each_node_has_metrics_of_the_cluster(cluster: Nodes) -> None:
    for running in cluster[:2]:
        text = running.text("/metrics")
        for line in (
            'flowguard_cluster_nodes{state="alive"} 2.0',
            'flowguard_cluster_nodes{state="lost"} 0.0',
            f'flowguard_cluster_shards{{state="serves"}} {SHARDS}.0',
            'flowguard_cluster_shards{state="down"} 0.0',
        ):
            assert f"{line}\n" in text
        adopted = re.findall(r"cluster_adoptions_total\{.*\} ([\d.]+)", text)
        assert sum(map(float, adopted)) >= 1
        wait_until(lambda running=running: LINK_IS_UP.search(running.text("/metrics")) is not None)


def test_shard_that_does_not_serve_is_down_and_says_why(tmp_path: Path) -> None:
    port = free_block(2 * SHARDS)
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        node(tmp_path / "a", redis, port) as first,
    ):
        wait_until(lambda: is_ready(first, SHARDS))
        assert first.get("/cluster")["down"] == []
        with stopped(first.pid(0)):
            wait_until(lambda: first.get("/cluster")["shards"]["0"]["state"] == "silent")
            with start("cluster", "status", "--url", f"http://{first.http}") as command:
                printed, _ = command.communicate(timeout=PATIENCE_S)
            assert command.returncode == 1
            assert f"Shard 0 does not serve: silent at 127.0.0.1:{port}." in printed
        wait_until(lambda: not first.get("/cluster")["down"])


def test_shard_that_no_node_can_run_is_down(tmp_path: Path) -> None:
    words = ("--workers", "1")
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        machine(
            tmp_path / "a",
            *arguments_of(redis, free_block(2 * SHARDS))[:-2],
            *words,
            environment={"FLOWGUARD_CLUSTER__SHARDS": str(SHARDS)},
        ) as first,
    ):
        wait_until(lambda: is_ready(first, 1))
        with start("cluster", "status", "--url", f"http://{first.http}") as command:
            printed, _ = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 1
        assert "Shard 1 does not serve: down, no living node can run it." in printed


@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_node_finds_and_ends_the_clients_of_both(cluster: Nodes, shard: int) -> None:
    first, second, _ = cluster
    for number, asked in enumerate((first, second)):
        (name,) = names(shard, 1, f"face-{number}")
        client, _ = connect(first, name)
        subscribe(client, "t")
        found = asked.get(f"/explain/{name}")
        assert found["connected"] is not None
        assert (found["shard"], found["node"]) == (shard, node_of(asked, shard))
        with start("explain", name, "--url", f"http://{asked.http}") as command:
            printed, _ = command.communicate(timeout=PATIENCE_S)
        assert printed.startswith(f"Shard {shard} at node {found['node']} has its session.")
        with start("clients", "kick", name, "--url", f"http://{asked.http}") as command:
            assert command.wait(PATIENCE_S) == 0
        ending = client.read()
        assert isinstance(ending, Disconnect)
        assert ending.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert asked.get(f"/explain/{name}")["connected"] is None
        with start("clients", "forget", name, "--url", f"http://{asked.http}") as command:
            assert command.wait(PATIENCE_S) == 0
        with start("explain", name, "--url", f"http://{asked.http}") as command:
            _, errors = command.communicate(timeout=PATIENCE_S)
        assert "has no session" in errors
        client.close()


def test_lists_of_a_node_have_the_clients_of_all_nodes(cluster: Nodes) -> None:
    first, second, _ = cluster
    every = [names(shard, 1, "listed")[0] for shard in range(SHARDS)]
    clients = [connect(first, name)[0] for name in every]
    for asked in (first, second):
        with start("clients", "list", "--json", "--url", f"http://{asked.http}") as command:
            printed, errors = command.communicate(timeout=PATIENCE_S)
        assert command.returncode == 0, errors
        assert all(name in printed for name in every)
        assert None not in asked.connected()
    for client in clients:
        client.close()


def test_trace_shows_packets_of_clients_of_other_nodes(cluster: Nodes) -> None:
    first, second, _ = cluster
    for shard in range(SHARDS):
        (name,) = names(shard, 1, "traced")
        client, _ = connect(first, name)
        for asked in (first, second):
            words = ("trace", "traced*", "--count", "1", "--url", f"http://{asked.http}")
            with start(*words) as command:
                assert command.stdout is not None
                deadline_s = time.monotonic() + PATIENCE_S
                while command.poll() is None:
                    assert time.monotonic() < deadline_s
                    client.send(Publish("nobody", b"", 1, packet_id=1))
                    assert isinstance(client.read(), Puback)
                    time.sleep(0.05)
                assert name in command.stdout.read()
        client.close()


@pytest.mark.parametrize("shard", range(SHARDS))
def test_client_that_connects_to_another_node_takes_over_its_session(
    cluster: Nodes, shard: int
) -> None:
    first, second, _ = cluster
    (name,) = names(shard, 1, "moving")
    old, _ = connect(first, name, clean_start=True)
    new, connack = connect(second, name)
    assert connack.session_present
    ending = old.read()
    assert isinstance(ending, Disconnect)
    assert ending.reason_code == ReasonCode.SESSION_TAKEN_OVER
    old.close()
    new.close()


def test_owner_at_another_node_knows_the_address_of_a_client(cluster: Nodes) -> None:
    first, second, _ = cluster
    for shard in range(SHARDS):
        (name,) = names(shard, 1, "address")
        stream = tcp(first.addresses[0])
        port = stream.getsockname()[1]
        client = Client(stream, name)
        client.accepted()
        owner = first if is_here(first, shard) else second
        assert owner.get(f"/explain/{name}")["connected"]["address"] == f"127.0.0.1:{port}"
        client.close()


def node_of(running: Machine, shard: int) -> str:
    return str(running.get("/cluster")["shards"][str(shard)]["node"])


def is_here(running: Machine, shard: int) -> bool:
    found = running.get("/cluster")
    return shard in found["nodes"][found["node"]]["shards"]


def test_no_shard_moves_while_redis_is_away_for_longer_than_a_lease(cluster: Nodes) -> None:
    first, second, redis = cluster
    table = "fg1:cluster"
    with redis.client() as client:
        before = client.hgetall(table)
    redis.pause()
    time.sleep(5.0)
    redis.resume()
    with redis.client() as client:
        beat = client.hget(table, f"n{first.get('/cluster')['node']}")
        wait_until(lambda: client.hget(table, f"n{first.get('/cluster')['node']}") != beat)
        time.sleep(1.0)
        after = client.hgetall(table)
    shards = [f"s{shard}".encode() for shard in range(SHARDS)]
    assert [after[each] for each in shards] == [before[each] for each in shards]
    assert is_ready(first, 1)
    assert is_ready(second, 1)


def test_bytes_that_are_no_client_of_a_node_end_the_connection(cluster: Nodes) -> None:
    first, _, _ = cluster
    wait_until(lambda: sum(is_here(first, shard) for shard in range(SHARDS)) == 1)
    found = first.get("/cluster")
    (shard,) = found["nodes"][found["node"]]["shards"]
    port = int(found["node"].rpartition(":")[2]) + 2 * shard + 1
    no_listener = {"listener": 9, "waited_s": 0, "version": 5, "peer": None, "identity": None}
    frames = (
        b"\x10\x10\0\4MQTT\5\2\0<\0\0\0\3abc",  # A client at the wrong port.
        struct.pack(">II", 2, 0) + b"{}",
        struct.pack(">II", 1, 0) + b"{",
        struct.pack(">II", len(json.dumps(no_listener)), 0) + json.dumps(no_listener).encode(),
    )
    for frame in frames:
        with tcp(("127.0.0.1", port)) as stream:
            stream.sendall(frame)
            assert stream.recv(1) == b""
    client, _ = connect(first, "still-there", clean_start=True)
    client.close()


def test_silent_connection_to_a_port_of_links_disturbs_nothing(cluster: Nodes) -> None:
    first, _, _ = cluster
    name = first.get("/cluster")["node"]
    wait_until(lambda: len(shards_of(first, name)) == 1)
    port = int(name.rpartition(":")[2]) + 2 * shards_of(first, name)[0]
    with tcp(("127.0.0.1", port)):
        time.sleep(0.5)  # Several ticks.
    assert "tick failed" not in first.broker.log.read_text()


def test_nothing_acknowledged_is_lost_when_a_node_is_killed(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        two_nodes(tmp_path, redis, KILLED) as (first, second),
    ):
        subscribers = [names(shard, 1, "kept")[0] for shard in range(SHARDS)]
        for name in subscribers:
            client, _ = connect(first, name)
            subscribe(client, "t")
            client.close()
        here = [shard for shard in range(SHARDS) if is_here(second, shard)]
        publisher, _ = connect(second, names(here[0], 1, "publisher")[0])
        for number in range(40):
            if number == 20:
                first.broker.process.kill()
            publish(publisher, number)  # Waits until a living node has the sessions of the first.
        wait_until(lambda: is_ready(second, SHARDS))
        for name in subscribers:
            client, connack = connect(second, name)
            assert connack.session_present
            assert received(client, 40) == list(range(40))
            client.close()
        publisher.close()
        assert "node lost" in second.broker.log.read_text()


def test_node_whose_cluster_port_is_taken_does_not_start(tmp_path: Path) -> None:
    port = free_block(2 * SHARDS)
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        socket.create_server(("127.0.0.1", port + 3)),
        start(
            "serve",
            *("--listen", "127.0.0.1:0", "--http", "none", "--data", str(tmp_path / "a")),
            *arguments_of(redis, port),
            environment={"FLOWGUARD_CLUSTER__SHARDS": str(SHARDS)},
        ) as node,
    ):
        _, errors = node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port + 3}" in errors
    assert "It is a port of cluster.address" in errors


def test_node_that_ends_gives_its_shards_away_first(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        two_nodes(tmp_path, redis) as (first, second),
    ):
        subscribers = [names(shard, 1, "kept")[0] for shard in range(SHARDS)]
        for name in subscribers:
            client, _ = connect(first, name)
            client.close()
        assert first.broker.terminate() == 0
        wait_until(lambda: is_ready(second, SHARDS))
        text = first.broker.log.read_text()
        assert "shard given away" in text.partition("SIGTERM")[2]
        for name in subscribers:
            client, connack = connect(second, name)
            assert connack.session_present
            client.close()
        wait_until(lambda: "node left" in second.broker.log.read_text())

        environment = {"FLOWGUARD_CLUSTER__SHARDS": str(SHARDS + 1)}
        with start(
            "serve",
            *("--listen", "127.0.0.1:0", "--http", "none", "--data", str(tmp_path / "c")),
            *arguments_of(redis, free_block(2 * SHARDS)),
            environment=environment,
        ) as other:
            _, errors = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 2
        assert f"cluster.shards is {SHARDS + 1}" in errors
        assert f"has {SHARDS}" in errors
