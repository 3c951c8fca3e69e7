"""Frozen settings, each with a default, and a unit where it has one; impossible relations fail.

Unknown keys are errors. No setting means "unlimited" by being zero: what may be absent is None.
"""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from flowguard.address import KafkaTopic
from flowguard.errors import ConfigError
from flowguard.kafka_settings import KafkaSettings
from flowguard.network_settings import NetworkSettings
from flowguard.section import Section

KIB = 1024
MIB = 1024 * KIB
PACKET_SIZE_MAX = 268_435_460
"""The largest control packet MQTT can express: 5 bytes of fixed header and 2**28 - 1 more."""
PACKET_SIZE_MIN = 39
"""The size of a CONNECT of MQTT 3.1 with a client id of 23 bytes, which every server has to take,
bytes."""
PolicyName = Literal[
    "flowguard",
    "unlimited",
    "static-1",
    "static-10",
    "static-100",
    "reject-at-limit",
    "rate-limit-v1",
    "level-map",
    "emqx-flag",
    "flashmq-gate",
    "vegas",
    "gradient2",
]

ZSET_MESSAGES_MAX: Final = 65_535
"""Messages in a queue of `redis.layout` zset: the published schema takes no more."""
KAFKA_PACKET_MAX: Final = 63 * MIB
"""A topic's batch has 64 MiB."""

NO_LESS_THAN = (
    (
        "flow.window_floor",
        "flow.window_max",
        "no window satisfies both; lower the minimum or raise the maximum",
    ),
    (
        "session.queue_bytes_max",
        "node.queue_bytes_max",
        "one client could never use its queue; raise the node's or lower the session's",
    ),
    (
        "session.outbox_bytes_max",
        "node.outbox_bytes_max",
        "one client could never use its outbox; raise the node's or lower the session's",
    ),
    (
        "session.packet_size_max",
        "session.queue_bytes_max",
        "no queue could hold the largest message; raise the queue's",
    ),
    (
        "session.packet_size_max",
        "node.inflight_bytes_max",
        "the largest message would never have a place in flight; raise the node's",
    ),
    (
        "session.packet_size_max",
        "node.input_bytes_max",
        "no client could send the largest packet; raise the node's or lower the packet's",
    ),
    (
        "session.state_bytes_max",
        "node.state_bytes_max",
        "one client could never use its state; raise the node's or lower the session's",
    ),
)
"""Pairs of keys, the first of which must not be above the second, and what to do where it is.

Where one of them is left to `flowguard.bounds`, it follows from the other.
"""


class FlowSettings(Section):
    """The overload law, windows and the CONNECT gate (docs/overload.md)."""

    policy: PolicyName = "flowguard"
    """The policy that decides: flowguard's law, or one of those it is compared with."""
    shadow_policy: PolicyName | None = None
    """A second policy that sees the same and decides nothing, for comparison."""
    window_max: int = Field(100, ge=1, le=65_535)
    """PUBLISH, SUBSCRIBE, UNSUBSCRIBE of a client in process when the node is calm, packets."""
    window_floor: float = Field(1.0, gt=0, le=65_535)
    """The smallest window; below 1 clients take turns in a fair pool, packets."""
    queue_objective_s: float = Field(0.025, gt=0)
    """Minimum sojourn that is still fine, seconds."""
    loop_objective_s: float = Field(0.050, gt=0)
    """Drift of the event loop that is still fine, seconds."""
    store_objective_s: float = Field(0.075, gt=0)
    """Latency of a durable write that is still fine, seconds."""
    replication_objective_s: float = Field(0.100, gt=0)
    """Age of unacknowledged replication that is still fine, seconds."""
    memory_objective: float = Field(0.70, gt=0, lt=1)
    """Share of the memory limit that may be held for long; more is pressure, 0 to 1."""
    cluster_rule: Literal["path", "max"] = "path"
    """Which nodes slow a client: those its work touches (`path`), or the worst of all (`max`)."""
    cost_deliveries: int = Field(100, ge=1)
    """Deliveries of a PUBLISH that weigh as much as one packet."""
    cost_bytes: int = Field(64 * KIB, ge=1)
    """Size of a PUBLISH that weighs as much as one more packet, bytes."""
    unfinished_max: int = Field(4_096, ge=1)
    """Cost units of all clients in process; beyond it they take turns, packets."""
    unfinished_bytes_max: int | None = Field(None, ge=MIB)
    """Size of all packets in process; absent: its share of the memory limit, a quarter, bytes."""
    connects_in_process_max: int = Field(1_024, ge=1)
    """CONNECTs worked on at once, at most; the law chooses below it."""
    connect_objective_s: float = Field(0.250, gt=0)
    """90th percentile of serving a CONNECT that is still fine, seconds."""
    connect_buffer_max: int = Field(10_000, ge=0)
    """CONNECTs waiting for a place."""
    connect_buffer_bytes_max: int = Field(16 * MIB, ge=0)
    """Size of the CONNECTs waiting; where it is not set, no more than its share of the memory
    limit, bytes."""
    connect_patience_s: float = Field(8.0, gt=0)
    """A CONNECT that waited longer is refused: its client has given up; where
    clients hang up earlier that is learned, seconds."""
    refusal_share: float = Field(0.3, gt=0, le=1)
    """Share of the loop that accepting and refusing may take while CONNECTs wait, of what messages
    leave, 0 to 1."""
    connect_timeout_s: float = Field(10.0, gt=0)
    """Time from accept to a complete CONNECT, seconds."""
    journal_ops_max: int = Field(65_536, ge=1)
    """Store operations waiting for a commit before all sockets pause."""
    journal_bytes_max: int = Field(64 * MIB, ge=1)
    """Size of these operations; where it is not set, no more than its share of the memory limit,
    bytes."""
    memory_max_bytes: int | None = Field(None, ge=64 * MIB)
    """All that the process may hold; every bound on memory that is not set gets its share of it
    (docs/limits.md); absent: 3/4 of the machine's or container's, bytes."""


class SessionSettings(Section):
    """Limits on one client, and the values that the server announces in CONNACK."""

    packet_size_max: int = Field(MIB, ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)
    """Largest packet accepted from a client, bytes."""
    payload_bytes_max: int | None = Field(None, ge=0)
    """Largest payload of a PUBLISH or will, beyond it 0x97; absent: what a packet holds, bytes."""
    receive_maximum: int = Field(1_000, ge=1, le=65_535)
    """QoS 1 and 2 PUBLISH a 5.0 client may have unacknowledged, more is 0x93; CONNACK tells the
    window of that moment by the weight of its last message, 2 to 32 of them, packets."""
    topic_alias_maximum: int = Field(64, ge=0, le=65_535)
    """Topic aliases a client may set, and the most that the broker uses towards a client."""
    topic_alias_qos_max: int = Field(1, ge=0, le=2)
    """Highest QoS that the broker sends by alias; MQTT.js 5.16 forgets the topic at 2."""
    session_expiry_max_s: int = Field(0xFFFF_FFFF, ge=0, le=0xFFFF_FFFF)
    """Longest session expiry granted; 4294967295: for ever, seconds."""
    keep_alive_max_s: int | None = Field(None, ge=1, le=65_535)
    """Longest keep-alive; a client that asks for more, or none, is told this one; absent: any,
    seconds."""
    inflight_max: int = Field(1_000, ge=1, le=32_000)
    """QoS 1 and 2 messages sent to a client and unacknowledged, messages."""
    inflight_bytes_max: int | None = Field(None, ge=KIB)
    """Size of these messages, as `node.inflight_bytes_max` counts, but always one message; absent:
    any, bytes."""
    queue_messages_max: int = Field(10_000, ge=1)
    """QoS 1 and 2 messages waiting for a client or a shared subscription, messages."""
    queue_bytes_max: int = Field(16 * MIB, ge=KIB)
    """Size of these messages; where it is not set, no more than an eighth of the node's, or a
    packet, bytes."""
    queue_policy: Literal["drop-new", "drop-oldest", "block"] = "drop-new"
    """What a full queue drops, never what was sent; `block`: the publisher waits."""
    block_s: float = Field(30.0, gt=0)
    """With `block`, a PUBLISH waits this long at most; then it is dropped as a new one, seconds."""
    log_threshold: int = Field(0, ge=0)
    """Messages of a topic with so many durable subscribers are stored once, in the durable log
    (docs/log.md); 0: never."""
    application_users: tuple[str, ...] = ()
    """Users whose clients are applications (docs/log.md), as patterns with * and ?; a role
    of the rules goes before."""
    application_client_ids: tuple[str, ...] = ()
    """The same by client id: anybody may call itself so where nobody has to prove a name."""
    start_time_available: bool = True
    """Whether SUBSCRIBE may start in the past, as far as the durable log goes; else 0x87."""
    dead_letter_topic: str | None = Field(None, min_length=1, max_length=1_000)
    """Messages that expire in a durable session go to this topic + "/" + their own."""
    outbox_bytes_max: int = Field(4 * MIB, ge=16 * KIB)
    """Encoded bytes waiting for a client's socket; beyond it QoS 0 is dropped; where it is not set,
    no more than an eighth of the node's, bytes."""
    subscriptions_max: int = Field(10_000, ge=1)
    """Subscriptions of one client."""
    state_bytes_max: int = Field(16 * MIB, ge=16 * KIB)
    """Client id, subscriptions, aliases, will, QoS 2 ids of a client; beyond it 0x97; where it is
    not set, no more than an eighth of the node's, bytes."""
    maximum_qos: int = Field(2, ge=0, le=2)
    """Highest QoS a client may publish with, and is granted."""
    retain_available: bool = True
    """Whether retained messages are kept at all."""
    long_client_ids_v31: bool = True
    """Whether MQTT 3.1 clients, too, may have client ids of more than 23 characters."""
    bound_to_user: bool = True
    """Whether a session belongs to the user who made it: another user who connects with its client
    id gets 0x87; false: for fleets whose users share client ids."""
    control_characters: bool = True
    """Whether strings may hold control characters and non-characters; else 0x81, or closed."""
    topic_levels_max: int = Field(200, ge=1, le=32_768)
    """Levels of a topic or filter."""

    @field_validator("dead_letter_topic")
    @classmethod
    def _topic_name(cls, topic: str | None) -> str | None:
        if topic is not None and (set(topic) & set("+#\0") or topic.split("/")[0] == "$SYS"):
            raise ValueError("a topic to publish to has no wildcards and is not below $SYS")
        return topic


class NodeSettings(Section):
    """Totals of the whole node; "its share" is its share of the memory limit (docs/limits.md)."""

    connections_max: int | None = Field(None, ge=1)
    """Clients connected or connecting; beyond it CONNACK 0x97; absent: its share."""
    descriptors_reserve: int = Field(128, ge=64)
    """Descriptors kept from clients: for HTTP, logs, recording, and the store beside its tables."""
    sessions_max: int | None = Field(None, ge=1)
    """Sessions that are kept when their client goes; beyond it CONNACK 0x97; absent: its share."""
    subscriptions_max: int = Field(10_000_000, ge=1)
    """Subscriptions of all clients; beyond it SUBACK 0x97."""
    queue_bytes_max: int | None = Field(None, ge=MIB)
    """QoS 1 and 2 messages waiting in all queues, in memory; absent: its share, bytes."""
    disk_queue_bytes_max: int | None = Field(None, ge=MIB)
    """Messages waiting in all durable queues; absent: half of what the disk had at start, bytes."""
    inflight_bytes_max: int | None = Field(None, ge=MIB)
    """QoS 1 and 2 messages sent and unacknowledged; beyond it one at a time per client; absent: its
    share, bytes."""
    outbox_bytes_max: int | None = Field(None, ge=MIB)
    """Encoded bytes waiting for sockets that do not take them; absent: its share, bytes."""
    input_bytes_max: int | None = Field(None, ge=MIB)
    """Input received and not decoded, and CONNECTs not answered, above 1 KiB per client; beyond it
    a client with much input that makes no progress is ended with 0x97; absent: its share, bytes."""
    plans_bytes_max: int | None = Field(None, ge=MIB)
    """Cached plans, which say for each topic where it leads; beyond it the oldest is dropped, and
    made anew when it is needed; absent: its share, bytes."""
    state_bytes_max: int | None = Field(None, ge=MIB)
    """Subscriptions, aliases, wills, QoS 2 ids, long client ids; absent: its share, bytes."""
    retained_messages_max: int = Field(100_000, ge=0)
    """Retained messages."""
    retained_bytes_max: int | None = Field(None, ge=0)
    """Size of retained messages; absent: its share, bytes."""
    sys_interval_s: float = Field(10.0, gt=0)
    """Time between two rounds of $SYS topics, seconds."""
    drain_s: float = Field(5.0, gt=0)
    """Time that work in process gets to finish after SIGTERM, seconds."""


class StoreSettings(Section):
    """The store in which sessions, queues and retained messages survive."""

    kind: Literal["rocks", "memory", "redis"] = "rocks"
    """RocksDB in the data directory, the memory of the process, which does not survive it, or a
    Redis server (section redis)."""
    layout: Literal["window", "status"] = "window"
    """How queues lie in RocksDB: `status` is the published schema, for comparison."""
    durability: Literal["memory", "os", "fsync", "replicated", "fsync+replicated"] = "fsync"
    """What acknowledged work survives: nothing (`memory`), the process's death (`os`), the
    machine's (`fsync`), with Redis a fail-over (`replicated`), or both."""
    disk_reserve_bytes: int = Field(64 * MIB, ge=0)
    """Space left free on the disk, or below the maxmemory of Redis, of which it is an eighth at
    most; below it the store is read-only and durable work refused, bytes."""
    cache_bytes: int = Field(64 * MIB, ge=MIB)
    """RocksDB's cache of blocks; where it is not set, no more than its share of the memory limit,
    bytes."""
    write_buffer_bytes: int = Field(32 * MIB, ge=MIB)
    """Write buffer of each column family, before it is written as a table; all together have four
    times as much; where it is not set, no more than its share of the memory limit, bytes."""
    wal_bytes_max: int = Field(256 * MIB, ge=MIB)
    """Size of the write-ahead log at which tables are written to shorten it, bytes."""
    blob_bytes_min: int = Field(4 * KIB, ge=64)
    """Payloads of at least this size are kept in blob files, bytes."""
    open_files_max: int = Field(512, ge=64)
    """Tables and blob files that RocksDB holds open; these descriptors are kept from clients,
    too."""
    background_jobs: int = Field(2, ge=1, le=64)
    """RocksDB's threads that write and compact tables."""
    log_layout: Literal["bitmask", "skipstream", "reference"] = "bitmask"
    """How the durable log lies in RocksDB from its next generation on: `skipstream` keeps topics of
    the same structure together, and an index; `reference` reads everything and compares."""
    application_store: Literal["log", "queues", "kafka"] = "log"
    """Where messages wait for applications: the durable log, if the store has one, where only
    retention ends them; queues with the bounds of all; or topics of Kafka (section kafka)."""
    log_shards: int = Field(4, ge=1, le=256)
    """Streams that publishers are divided among, from the next generation on."""
    log_retention_s: float = Field(86_400.0, gt=0)
    """The durable log keeps messages for this time, and an eighth longer at most, seconds."""
    log_bytes_max: int = Field(4096 * MIB, ge=MIB)
    """Size of the durable log before compression; beyond it its oldest eighth is dropped, bytes."""


class RedisSettings(Section):
    """The server where sessions live with `store.kind = "redis"` (docs/redis.md)."""

    url: str = "redis://127.0.0.1:6379/0"
    """Its address: redis://HOST:PORT/DB, rediss://USER:PASSWORD@HOST for TLS, or unix:///PATH; a
    Redis Cluster by some of its nodes: redis+cluster://HOST:PORT,HOST:PORT; what
    Sentinels call NAME: redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB; both with rediss, too."""
    prefix: str = Field("fg1", min_length=1, max_length=100)
    """The first part of all keys; one broker at a time has it."""
    layout: Literal["stream", "zset"] = "stream"
    """How queues lie there: a stream for each; `zset` is the published schema, a sorted set of
    references and a string for each message, and takes `session.queue_messages_max` up to
    65,535."""
    replicas: int = Field(1, ge=1, le=100)
    """Replicas that must confirm each commit, with `store.durability = "replicated"`."""
    timeout_s: float = Field(5.0, gt=0)
    """An answer that takes longer will not come: the connection is made anew, seconds."""
    lease_s: float = Field(3.0, ge=0.5)
    """A broker that was silent for so long may be succeeded by another one, seconds."""
    takeover: bool = False
    """Whether a broker waits until the one that has the prefix ends, instead of being refused."""

    @field_validator("prefix")
    @classmethod
    def _no_tag(cls, prefix: str) -> str:
        if set(prefix) & set("{}") or not prefix.isprintable() or " " in prefix:
            raise ValueError("a prefix has no braces, no spaces and no control characters")
        return prefix


class TelemetrySettings(Section):
    """The broker's recording of itself (docs/analysis.md)."""

    record_dir: Path | None = None
    """Where runs are recorded, a directory in it for each; absent: nowhere."""
    record_topic: str | None = None
    """The topic of Kafka into which runs are recorded instead: kafka://HOST:PORT,.../TOPIC."""
    run_s: float = Field(3_600.0, ge=0.1)
    """A run is completed after this time, can be analysed, and the next one begins, seconds."""
    rotate_s: float = Field(60.0, ge=0.1)
    """A file of a run is completed after this time, for those who follow, seconds."""
    rotate_rows: int = Field(1_000_000, ge=1_000)
    """A file of a run is completed after this many rows."""
    keep_bytes: int = Field(1024 * MIB, ge=MIB)
    """Size of all runs; beyond it the oldest are deleted; a run that has a quarter of it ends,
    bytes."""
    buffer_rows_max: int = Field(100_000, ge=1_000)
    """Rows that wait for the disk or Kafka; half may be attempts; beyond it rows are dropped."""
    buffer_bytes_max: int = Field(32 * MIB, ge=MIB)
    """Size of these rows, bytes."""

    @field_validator("record_topic")
    @classmethod
    def _topic(cls, topic: str | None) -> str | None:
        try:
            return None if topic is None else str(KafkaTopic.parse(topic))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.record_dir is not None and self.record_topic is not None:
            raise ValueError("telemetry.record_dir and telemetry.record_topic: choose one of them")
        return self


class HttpSettings(Section):
    """The port for metrics, status and health (docs/operations.md)."""

    names: tuple[str, ...] = ()
    """Names by which it may be asked, besides addresses and localhost."""
    token_file: Path | None = None
    """A file of which the first line is the token that other machines have to say; None: there is
    none, and the page is for this machine only."""
    backup_interval_s: float = Field(10.0, ge=0)
    """Pause between two copies of the store, for which all commits wait, seconds."""

    @field_validator("names", mode="before")
    @classmethod
    def _listed(cls, names: object) -> object:
        """The names; an environment variable lists them in one text: `a.example,b.example`."""
        return names.replace(",", " ").split() if isinstance(names, str) else names

    @field_validator("names")
    @classmethod
    def _hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not name or set(name) & set(":/*[] "):
                raise ValueError(f"{name!r}: a name without scheme, port and wildcard is expected")
        return tuple(name.lower().removesuffix(".") for name in names)


class LogSettings(Section):
    """The log on standard error."""

    format: Literal["human", "json"] = "human"
    """For people, or a JSON object in each line: event, level, timestamp, and what belongs to
    it."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less than that is left out."""


class Settings(Section):
    """All of a node's settings."""

    flow: FlowSettings = FlowSettings()
    session: SessionSettings = SessionSettings()
    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    redis: RedisSettings = RedisSettings()
    kafka: KafkaSettings = KafkaSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    http: HttpSettings = HttpSettings()
    network: NetworkSettings = NetworkSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.store.kind != "redis" and "replicated" in self.store.durability:
            raise ValueError(
                f"store.durability {self.store.durability} needs store.kind redis: "
                f"{self.store.kind} has no replicas"
            )
        if self.store.application_store == "kafka" and self.store.kind != "rocks":
            raise ValueError(
                "store.application_store kafka needs store.kind rocks: the data directory "
                "records which queues are in Kafka"
            )
        if (
            self.store.application_store == "kafka"
            and self.session.packet_size_max > KAFKA_PACKET_MAX
        ):
            raise ValueError(
                f"session.packet_size_max is above {KAFKA_PACKET_MAX}: a message would be larger "
                "than what store.application_store kafka takes"
            )
        if (
            self.store.kind == "redis"
            and self.redis.layout == "zset"
            and self.session.queue_messages_max > ZSET_MESSAGES_MAX
        ):
            raise ValueError(
                f"session.queue_messages_max is above {ZSET_MESSAGES_MAX}, which redis.layout zset "
                "takes at most: lower it, or choose redis.layout stream"
            )
        for lesser, greater, why in NO_LESS_THAN:
            if self._follows(lesser, greater):
                continue
            if self._value(lesser) > self._value(greater):
                raise ValueError(f"{lesser} is above {greater}: {why}")
        return self

    def _follows(self, lesser: str, greater: str) -> bool:
        """Whether one of the two is not set, and will be given what goes with the other."""
        if self._value(greater) is None:
            return True
        _, _, name = lesser.partition(".")
        same = lesser == "session." + greater.removeprefix("node.")
        return same and name not in self.session.model_fields_set

    def _value(self, key: str) -> float:
        section, _, name = key.partition(".")
        value: float = getattr(getattr(self, section), name)
        return value
