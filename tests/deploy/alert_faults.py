"""A real fault for each alert: it returns the recording, and the time that a sample stands for.

A sample every few milliseconds that stands for a minute makes ten minutes of a fault short.
"""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit
from signal import SIGKILL

from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.identity.passwords import PasswordFile
from flowguard.types import Properties, Publish, ReasonCode, SubscriptionOptions
from tests.deploy.recording import Recording
from tests.flowguard.cli import test_serve_kafka
from tests.flowguard.cli.http_port import http_address, run
from tests.flowguard.stores.rocks.damage import change_byte
from tests.interop.broker import OURS, Broker, running_broker
from tests.support.authority import Authority
from tests.support.caller import Caller
from tests.support.kafka import kafka
from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.nodes import free_block

SAMPLES_COUNT = 15
TWO_SHARDS = {"FLOWGUARD_CLUSTER__SHARDS": "2"}
BRIEF = Properties()
DURABLE = Properties(session_expiry_interval=1_000)
KIB = 1024
MIB = 1024 * KIB


def settings(server: RedisServer, prefix: str) -> dict[str, str]:
    return {
        "FLOWGUARD_REDIS__LEASE_S": "60",
        "FLOWGUARD_REDIS__PREFIX": prefix,
        "FLOWGUARD_REDIS__TIMEOUT_S": "1",
        "FLOWGUARD_REDIS__URL": server.url,
    }


def connect_as(broker: Broker, client_id: str, properties: Properties = BRIEF) -> Caller:
    caller = Caller(broker, client_id=client_id, clean_start=False, properties=properties)
    assert isinstance(caller.read(), Connack)
    return caller


def subscribe(broker: Broker, client_id: str = "absent") -> None:
    """Make a session with a subscription and without a connection."""
    with connect_as(broker, client_id, DURABLE) as caller:
        caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
        assert isinstance(caller.read(), Suback)


def publish(caller: Caller, size: int = 1, *, topic: str = "t", retain: bool = False) -> int:
    """Publish with QoS 1, and return the reason code of PUBACK."""
    caller.send(Publish(topic, os.urandom(size), 1, retain, packet_id=1))
    answer = caller.read()
    assert isinstance(answer, Puback)
    return answer.reason_code


def down(folder: Path) -> tuple[Recording, str]:
    with running_broker(folder) as broker:
        recording = Recording(http_address(broker))
        recording.take()
    for _ in range(3):
        recording.take()
    return recording, "1m"


def disk_full(folder: Path) -> tuple[Recording, str]:
    """Redis has no memory left; the node treats a disk without space in the same way."""
    with redis_server(folder / "redis", ALWAYS) as redis:
        environment = {**settings(redis, "full"), "FLOWGUARD_REDIS__LEASE_S": "4"}
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            with redis.client() as client:
                client.config_set("maxmemory", client.info()["used_memory"] + 10 * KIB)
            recording.until(lambda now: now["flowguard_store_read_only"] == 1)
    return recording, "1s"


def disk_fills_up(folder: Path) -> tuple[Recording, str]:
    with redis_server(folder / "redis", {**ALWAYS, "maxmemory": "64mb"}) as redis:
        environment = {**settings(redis, "fills"), "FLOWGUARD_REDIS__LEASE_S": "4"}
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            subscribe(broker)
            free_bytes = recording.take()["flowguard_store_free_bytes"]
            with connect_as(broker, "publisher") as publisher:
                for _ in range(4):
                    for _ in range(10):
                        assert publish(publisher, 400 * KIB) == 0
                    while recording.now()["flowguard_store_free_bytes"] > free_bytes - 3 * MIB:
                        time.sleep(0.2)
                    free_bytes = recording.take()["flowguard_store_free_bytes"]
    return recording, "30m"


def store_away(folder: Path, *, recovers: bool = False) -> tuple[Recording, str]:
    with redis_server(folder / "redis", ALWAYS) as redis:
        environment = {**settings(redis, "stopped"), "FLOWGUARD_REDIS__LEASE_S": "4"}
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            recording.take()
            redis.pause()
            try:
                recording.until(lambda now: now["flowguard_store_away_seconds"] > 11)
            finally:
                redis.resume()
            if recovers:
                recording.until(lambda now: now["flowguard_store_away_seconds"] == 0)
    return recording, "1s"


def kafka_away(folder: Path) -> tuple[Recording, str]:
    with kafka(folder / "kafka") as server:
        words = (*test_serve_kafka.settings(folder, "away"), "--kafka-servers", server.servers)
        with running_broker(folder, *words) as broker:
            address = http_address(broker)
            recording = Recording(address)
            test_serve_kafka.subscribe(broker, "app-1")
            with connect_as(broker, "publisher") as publisher:
                assert publish(publisher) == 0
                recording.take()
                server.nodes[0].kill()
                publisher.send(Publish("t", b"waits", 1, packet_id=1))
                recording.until(lambda now: now["flowguard_applications_away_seconds"] > 31)
                _, shown, _ = run("top", "--once", f"http://{address}")
                assert "Kafka has accepted no messages for 3" in shown
    return recording, "1s"


def node_arguments(redis: RedisServer, shards_max: int) -> tuple[str, ...]:
    """Arguments of a node in a cluster of two shards."""
    cluster = ("--cluster", f"127.0.0.1:{free_block(4)}", "--workers", str(shards_max))
    return ("--store", "redis", "--redis-url", redis.url, *cluster)


def of_cluster(now: dict[str, float], kind: str, state: str) -> float:
    return now.get(f'flowguard_cluster_{kind}{{state="{state}"}}', 0.0)


def shard_down(folder: Path) -> tuple[Recording, str]:
    """The only node runs one of two shards at most."""
    with redis_server(folder / "redis", ALWAYS) as redis:
        words = node_arguments(redis, 1)
        with running_broker(folder, *words, environment=TWO_SHARDS) as broker:
            recording = Recording(http_address(broker))
            recording.until(lambda now: of_cluster(now, "shards", "serves") == 1)
            for _ in range(3):
                recording.take()
    return recording, "1m"


def node_lost(folder: Path) -> tuple[Recording, str]:
    with redis_server(folder / "redis", ALWAYS) as redis:
        first, second = node_arguments(redis, 2), node_arguments(redis, 2)
        with running_broker(folder / "1", *first, environment=TWO_SHARDS) as broker:
            recording = Recording(http_address(broker))
            options = {"environment": TWO_SHARDS, "exit_code": -SIGKILL}
            with running_broker(folder / "2", *second, **options) as other:
                recording.until(lambda now: of_cluster(now, "nodes", "alive") == 2)
                recording.until(lambda now: of_cluster(now, "shards", "serves") == 2)
                other.process.kill()
            recording.until(lambda now: of_cluster(now, "nodes", "lost") == 1)
            recording.until(lambda now: of_cluster(now, "shards", "serves") == 2)
            recording.take()
            recording.take()
    return recording, "1m"


def link_down(folder: Path) -> tuple[Recording, str]:
    """One of two nodes has TLS, and the other one has not."""
    authority = Authority(folder)
    pair = authority.issue("127.0.0.1")
    files = {"CERT": pair.cert, "KEY": pair.key, "CA": authority.cert}
    secure = {f"FLOWGUARD_CLUSTER__{name}": str(path) for name, path in files.items()} | TWO_SHARDS
    with redis_server(folder / "redis", ALWAYS) as redis:
        first, second = node_arguments(redis, 2), node_arguments(redis, 2)
        with running_broker(folder / "1", *first, environment=TWO_SHARDS) as broker:
            recording = Recording(http_address(broker))
            with running_broker(folder / "2", *second, environment=secure):
                recording.until(lambda now: of_cluster(now, "nodes", "alive") == 2)
                recording.until(lambda now: of_cluster(now, "shards", "serves") == 2)
                recording.until(lambda now: 1 in [now[name] for name in now if "link_" in name])
                for _ in range(3):
                    recording.take()
    return recording, "1m"


def certificate(folder: Path, days: int = 5) -> tuple[Recording, str]:
    pair = Authority(folder).issue("server", days=days)
    words = ("--listen", "mqtts://127.0.0.1:0", "--cert", str(pair.cert), "--key", str(pair.key))
    with running_broker(folder, *words) as broker:
        recording = Recording(http_address(broker))
        recording.take()
        recording.take()
    return recording, "1s"


def taken_over(folder: Path) -> tuple[Recording, str]:
    with running_broker(folder) as broker:
        recording = Recording(http_address(broker))
        callers = [connect_as(broker, "twin")]
        for _ in range(SAMPLES_COUNT + 5):
            callers += [connect_as(broker, "twin") for _ in range(4)]
            recording.take()
        for caller in callers:
            caller.close()
    return recording, "1m"


def store_damaged(folder: Path) -> tuple[Recording, str]:
    """A byte of a message on the disk changes while the client is absent."""
    with running_broker(folder) as broker:
        subscribe(broker)
        with connect_as(broker, "publisher") as publisher:
            for _ in range(20):
                assert publish(publisher, 100 * KIB) == 0
    with running_broker(folder) as broker:
        recording = Recording(http_address(broker))
        recording.take()
        for pattern in ("*.sst", "*.blob"):
            for path in (folder / "data").glob(pattern):
                change_byte(path, path.stat().st_size // 2)
        with connect_as(broker, "absent", DURABLE) as caller:
            while caller.read() is not None:
                pass
        recording.take()
    return recording, "1m"


def window_closed(folder: Path) -> tuple[Recording, str]:
    with redis_server(folder / "redis", ALWAYS) as redis:
        environment = {**settings(redis, "closed"), "FLOWGUARD_FLOW__JOURNAL_OPS_MAX": "10"}
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            subscribe(broker)
            with connect_as(broker, "publisher") as publisher:
                recording.take()
                redis.pause()
                try:
                    for number in range(1, 50):
                        publisher.send(Publish("t", b"waits", 1, packet_id=number))
                    while not recording.take()["flowguard_window_closed"]:
                        time.sleep(0.1)
                    for _ in range(4):
                        recording.take()
                finally:
                    redis.resume()
    return recording, "10s"


def windows_small(folder: Path) -> tuple[Recording, str]:
    """A store is slow, and publishers send more meanwhile; at last it stands still."""
    with redis_server(folder / "redis", ALWAYS) as redis:
        environment = settings(redis, "small")
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            subscribe(broker)
            callers = [connect_as(broker, f"publisher-{number}") for number in range(40)]
            while recording.now()["flowguard_window_packets"] > 5:
                slow_commit(redis, callers, 50)
            redis.pause()
            for _ in range(7):
                recording.take()
            redis.resume()
            for caller in callers:
                caller.close()
    return recording, "1m"


def store_slow(folder: Path) -> tuple[Recording, str]:
    with redis_server(folder / "redis", ALWAYS) as redis:
        environment = settings(redis, "slow")
        with running_broker(folder, "--store", "redis", environment=environment) as broker:
            recording = Recording(http_address(broker))
            subscribe(broker)
            with connect_as(broker, "publisher") as publisher:
                for _ in range(SAMPLES_COUNT):
                    slow_commit(redis, [publisher], 1)
                    recording.take()
    return recording, "1m"


def slow_commit(redis: RedisServer, callers: list[Caller], count: int) -> None:
    """Publish `count` messages of each caller while the store stands still for 0.5 s."""
    redis.pause()
    for caller in callers:
        caller.send(*[Publish("t", b"slow", 1, packet_id=1 + number) for number in range(count)])
    time.sleep(0.5)
    redis.resume()
    for caller in callers:
        for _ in range(count):
            assert isinstance(caller.read(), Puback)


def clients_refused(folder: Path) -> tuple[Recording, str]:
    environment = {"FLOWGUARD_NODE__CONNECTIONS_MAX": "1"}
    with running_broker(folder, environment=environment) as broker:
        recording = Recording(http_address(broker))
        with connect_as(broker, "first"):
            for _ in range(SAMPLES_COUNT):
                for number in range(5):
                    with Caller(broker, client_id=f"more-{number}") as caller:
                        answer = caller.read()
                        assert isinstance(answer, Connack)
                        assert answer.reason_code
                recording.take()
    return recording, "1m"


def messages_dropped(folder: Path) -> tuple[Recording, str]:
    environment = {"FLOWGUARD_SESSION__QUEUE_MESSAGES_MAX": "1"}
    with running_broker(folder, environment=environment) as broker:
        recording = Recording(http_address(broker))
        subscribe(broker)
        with connect_as(broker, "publisher") as publisher:
            for _ in range(SAMPLES_COUNT):
                publish(publisher)
                publish(publisher)
                recording.take()
    return recording, "1m"


def memory_short(folder: Path) -> tuple[Recording, str]:
    """Retained messages fill a broker whose settings leave little memory for work."""
    environment = {
        "FLOWGUARD_FLOW__MEMORY_MAX_BYTES": str(160 * MIB),
        "FLOWGUARD_FLOW__MEMORY_OBJECTIVE": "0.95",
        "FLOWGUARD_NODE__RETAINED_BYTES_MAX": str(70 * MIB),
    }
    with running_broker(folder, "--store", "memory", environment=environment) as broker:
        recording = Recording(http_address(broker))
        with connect_as(broker, "publisher") as publisher:
            codes = (
                publish(publisher, 512 * KIB, topic=f"r/{number}", retain=True)
                for number in itertools.count()
            )
            assert ReasonCode.QUOTA_EXCEEDED in codes
        for _ in range(SAMPLES_COUNT):
            recording.take()
    return recording, "1m"


def descriptors_short(folder: Path) -> tuple[Recording, str]:
    program = ("sh", "-c", 'ulimit -n 700; exec "$@"', "sh", *OURS)
    with running_broker(folder, program=program) as broker:
        recording = Recording(http_address(broker))
        limit = int(recording.take()["flowguard_connections_limit"])
        callers = [connect_as(broker, f"client-{number}") for number in range(limit)]
        for _ in range(SAMPLES_COUNT):
            recording.take()
        for caller in callers:
            caller.close()
    return recording, "1m"


def passwords_guessed(folder: Path) -> tuple[Recording, str]:
    users = folder / "users"
    users.write_text(PasswordFile({}).with_user("user", b"secret").text())
    with running_broker(folder, "--password-file", str(users), "--allow-all-topics") as broker:
        recording = Recording(http_address(broker))
        for _ in range(2 * SAMPLES_COUNT):
            for _ in range(160):
                with Caller(broker, username="user", password=b"guess") as caller:
                    caller.read()
            recording.take()
    return recording, "30s"


def not_recording(folder: Path) -> tuple[Recording, str]:
    environment = {"FLOWGUARD_TELEMETRY__ROTATE_S": "0.1"}
    words = ("--store", "memory", "--record", str(folder / "live"))
    with running_broker(folder, *words, environment=environment) as broker:
        recording = Recording(http_address(broker))
        prlimit(broker.process.pid, RLIMIT_FSIZE, (8_192, 8_192))
        recording.until(lambda now: now["flowguard_recording"] == 0)
        for _ in range(3):
            recording.take()
    return recording, "1m"


Fault = Callable[[Path], tuple[Recording, str]]

FAULTS: dict[str, Fault] = {
    "FlowguardDown": down,
    "FlowguardDiskFull": disk_full,
    "FlowguardStoreAway": store_away,
    "FlowguardKafkaAway": kafka_away,
    "FlowguardShardDown": shard_down,
    "FlowguardNodeLost": node_lost,
    "FlowguardLinkDown": link_down,
    "FlowguardCertificateExpires": certificate,
    "FlowguardClientsTakenOver": taken_over,
    "FlowguardStoreDamaged": store_damaged,
    "FlowguardClosed": window_closed,
    "FlowguardWindowsSmall": windows_small,
    "FlowguardClientsRefused": clients_refused,
    "FlowguardMessagesDropped": messages_dropped,
    "FlowguardStoreSlow": store_slow,
    "FlowguardDiskFillsUp": disk_fills_up,
    "FlowguardMemoryShort": memory_short,
    "FlowguardDescriptorsShort": descriptors_short,
    "FlowguardPasswordsGuessed": passwords_guessed,
    "FlowguardNotRecording": not_recording,
}
