"""Frozen settings, each with a default and, if it has one, a unit; impossible relations fail.

Unknown keys are errors. Zero never means "unlimited"; a setting that may be absent is None.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from flowguard.address import KafkaTopic
from flowguard.errors import ConfigError
from flowguard.kafka_settings import KafkaSettings
from flowguard.network_settings import ClusterSettings, HttpSettings, NetworkSettings
from flowguard.section import Section

KIB = 1024
MIB = 1024 * KIB
PACKET_SIZE_MAX = 268_435_460
"""The largest control packet MQTT can express: 5 bytes of fixed header and 2**28 - 1 more."""
PACKET_SIZE_MIN = 39
"""Size of a CONNECT of MQTT 3.1 with a client id of 23 bytes, which every server must accept."""
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

WORKERS_MAX: Final = 64

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
"""Pairs of keys, of which the first must not exceed the second, and the advice if it does.

If one of them is left to `flowguard.bounds`, it follows from the other.
"""


class FlowSettings(Section):
    """The overload law, windows and the CONNECT gate (docs/explain/overload.md)."""

    policy: PolicyName = "flowguard"
    """Overload policy: flowguard's law, or a policy for comparison."""
    shadow_policy: PolicyName | None = None
    """Second policy that observes the same traffic without effect, for comparison."""
    window_max: int = Field(100, ge=1, le=65_535)
    """Maximum PUBLISH, SUBSCRIBE and UNSUBSCRIBE in process per client on a calm node, packets."""
    window_floor: float = Field(1.0, gt=0, le=65_535)
    """Minimum window of a client; below 1, clients share a fair pool, packets."""
    queue_objective_s: float = Field(0.025, gt=0)
    """Highest acceptable minimum sojourn time, seconds."""
    loop_objective_s: float = Field(0.050, gt=0)
    """Highest acceptable delay of the event loop, seconds."""
    store_objective_s: float = Field(0.075, gt=0)
    """Highest acceptable latency of a durable write, seconds."""
    replication_objective_s: float = Field(0.100, gt=0)
    """Highest acceptable age of unacknowledged replication, seconds."""
    memory_objective: float = Field(0.70, gt=0, lt=1)
    """Highest acceptable lasting use of the memory limit; more is pressure, 0 to 1."""
    cluster_rule: Literal["path", "max"] = "path"
    """Nodes that slow a client: those on the path of its messages (`path`), or the most loaded one
    of all (`max`)."""
    cost_deliveries: int = Field(100, ge=1)
    """Number of deliveries of a PUBLISH that cost as much as one packet."""
    cost_bytes: int = Field(64 * KIB, ge=1)
    """Size of a PUBLISH that costs as much as one more packet, bytes."""
    unfinished_max: int = Field(4_096, ge=1)
    """Maximum cost of all packets in process; beyond it clients take turns, packets."""
    unfinished_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of all packets in process; if absent, a quarter of the memory limit, bytes."""
    connects_in_process_max: int = Field(1_024, ge=1)
    """Maximum number of CONNECTs in process; the law may choose fewer."""
    connect_objective_s: float = Field(0.250, gt=0)
    """Highest acceptable 90th percentile of the service time of a CONNECT, seconds."""
    connect_buffer_max: int = Field(10_000, ge=0)
    """Maximum number of CONNECTs in the connect queue."""
    connect_buffer_bytes_max: int = Field(16 * MIB, ge=0)
    """Maximum size of the connect queue; the default is at most its share, bytes."""
    connect_patience_s: float = Field(8.0, gt=0)
    """Maximum wait of a CONNECT before it is rejected, because its client has given up. The broker
    learns a shorter time if clients disconnect earlier, seconds."""
    refusal_share: float = Field(0.3, gt=0, le=1)
    """Maximum share of the event loop for accepting and rejecting connections while CONNECTs wait,
    of the time that messages leave, 0 to 1."""
    connect_timeout_s: float = Field(10.0, gt=0)
    """Maximum time from accept to a complete CONNECT, seconds."""
    journal_ops_max: int = Field(65_536, ge=1)
    """Maximum number of store operations waiting for a commit; beyond it all sockets pause."""
    journal_bytes_max: int = Field(64 * MIB, ge=1)
    """Maximum size of these operations; the default is capped by its share of the memory limit,
    bytes."""
    memory_max_bytes: int | None = Field(None, ge=64 * MIB)
    """Memory limit of the process. Every bound on memory that is not set gets a share of it
    (docs/explain/limits.md). If absent, 3/4 of the machine's or container's memory, bytes."""


class SessionSettings(Section):
    """Limits on one client, and the values that the server announces in CONNACK."""

    packet_size_max: int = Field(MIB, ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)
    """Maximum size of a packet from a client, bytes."""
    payload_bytes_max: int | None = Field(None, ge=0)
    """Maximum payload of a PUBLISH or will, beyond it 0x97; if absent, limited by the packet,
    bytes."""
    receive_maximum: int = Field(1_000, ge=1, le=65_535)
    """Maximum number of unacknowledged QoS 1 and 2 PUBLISH of an MQTT 5.0 client, beyond it 0x93.
    CONNACK announces the current window as a number of messages with the weight of the client's
    last one, 2 to 32, packets."""
    topic_alias_maximum: int = Field(64, ge=0, le=65_535)
    """Maximum number of topic aliases of a client, and of the broker towards a client."""
    topic_alias_qos_max: int = Field(1, ge=0, le=2)
    """Highest QoS that the broker sends by alias; MQTT.js 5.16 loses the topic at QoS 2."""
    session_expiry_max_s: int = Field(0xFFFF_FFFF, ge=0, le=0xFFFF_FFFF)
    """Maximum session expiry interval; 4294967295 means no expiry, seconds."""
    keep_alive_max_s: int | None = Field(None, ge=1, le=65_535)
    """Maximum keep-alive, which also applies to a client without keep-alive; if absent, no maximum,
    seconds."""
    inflight_max: int = Field(1_000, ge=1, le=32_000)
    """Maximum number of unacknowledged QoS 1 and 2 messages to a client, messages."""
    inflight_bytes_max: int | None = Field(None, ge=KIB)
    """Maximum size of these messages, counted as in `node.inflight_bytes_max`. One message is
    always allowed. If absent, no maximum, bytes."""
    queue_messages_max: int = Field(10_000, ge=1)
    """Maximum number of QoS 1 and 2 messages queued for a client or a shared subscription,
    messages."""
    queue_bytes_max: int = Field(16 * MIB, ge=KIB)
    """Maximum size of these messages; the default is capped by an eighth of the node's limit or one
    packet, bytes."""
    queue_policy: Literal["drop-new", "drop-oldest", "block"] = "drop-new"
    """Message that a full queue drops, never one that was sent. With `block` the publisher
    waits."""
    block_s: float = Field(30.0, gt=0)
    """Maximum wait of a PUBLISH with `block`; then the message is dropped, seconds."""
    log_threshold: int = Field(0, ge=0)
    """Number of durable subscribers from which a topic's messages are stored once, in the durable
    log (docs/explain/log.md); 0 disables it."""
    application_users: tuple[str, ...] = ()
    """Users whose clients are applications (docs/explain/log.md), as patterns with * and ?. A role
    in the rules takes precedence."""
    application_client_ids: tuple[str, ...] = ()
    """Client ids of applications, as patterns. Without authentication, any client can use such an
    id."""
    start_time_available: bool = True
    """Allow SUBSCRIBE to start in the past, as far as the durable log reaches; otherwise 0x87."""
    dead_letter_topic: str | None = Field(None, min_length=1, max_length=1_000)
    """Prefix of the topic for messages that expire in a durable session, before "/" and their own
    topic."""
    outbox_bytes_max: int = Field(4 * MIB, ge=16 * KIB)
    """Maximum size of encoded data waiting for a client's socket; beyond it QoS 0 is dropped. The
    default is capped by an eighth of the node's limit, bytes."""
    subscriptions_max: int = Field(10_000, ge=1)
    """Maximum number of subscriptions of one client."""
    state_bytes_max: int = Field(16 * MIB, ge=16 * KIB)
    """Maximum size of a client's id, subscriptions, aliases, will and QoS 2 ids, beyond it 0x97.
    The default is capped by an eighth of the node's limit, bytes."""
    maximum_qos: int = Field(2, ge=0, le=2)
    """Highest QoS that a client may publish with or subscribe with."""
    retain_available: bool = True
    """Keep retained messages."""
    long_client_ids_v31: bool = True
    """Accept client ids of more than 23 characters from MQTT 3.1 clients."""
    bound_to_user: bool = True
    """Bind a session to the user who created it. Another user who connects with its client id gets
    0x87. Disable it for fleets whose users share client ids."""
    control_characters: bool = True
    """Accept control characters and non-characters in strings; otherwise 0x81, or the connection is
    closed."""
    topic_levels_max: int = Field(200, ge=1, le=32_768)
    """Maximum number of levels in a topic or filter."""

    @field_validator("dead_letter_topic")
    @classmethod
    def _topic_name(cls, topic: str | None) -> str | None:
        if topic is not None and (set(topic) & set("+#\0") or topic.split("/")[0] == "$SYS"):
            raise ValueError("a topic to publish to has no wildcards and is not below $SYS")
        return topic


class NodeSettings(Section):
    """Totals of the node; "its share" is its share of the memory limit (docs/explain/limits.md)."""

    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] | Literal["auto"] = 1
    """Number of processes that share the clients; `auto` is one per core (docs/operate/workers.md).
    In a cluster it is the maximum number of shards of this node, by default all."""
    worker_timeout_s: float = Field(30.0, ge=5)
    """Time without an answer after which one of several workers is killed and started again,
    seconds."""
    connections_max: int | None = Field(None, ge=1)
    """Maximum number of clients connected or connecting, beyond it CONNACK 0x97; if absent, its
    share."""
    descriptors_reserve: int = Field(128, ge=64)
    """Descriptors reserved for HTTP, logs, recording, and files of the store except tables."""
    sessions_max: int | None = Field(None, ge=1)
    """Maximum number of sessions kept after their client disconnects, beyond it CONNACK 0x97; if
    absent, its share."""
    subscriptions_max: int = Field(10_000_000, ge=1)
    """Maximum number of subscriptions of all clients, beyond it SUBACK 0x97."""
    queue_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of QoS 1 and 2 messages in memory in all queues; if absent, its share, bytes."""
    disk_queue_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of messages in all durable queues; if absent, half of the disk, bytes."""
    inflight_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of sent and unacknowledged QoS 1 and 2 messages; beyond it each client gets one
    at a time. If absent, its share, bytes."""
    outbox_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of encoded data waiting for all sockets; if absent, its share, bytes."""
    input_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of undecoded input and unanswered CONNECTs, above 1 KiB per client. Beyond it, a
    client with much input and no progress is closed with 0x97. If absent, its share, bytes."""
    plans_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of cached plans, which list the subscribers of each topic. Beyond it the oldest
    is dropped, and rebuilt when needed. If absent, its share, bytes."""
    state_bytes_max: int | None = Field(None, ge=MIB)
    """Maximum size of subscriptions, aliases, wills, QoS 2 ids and long client ids; if absent, its
    share, bytes."""
    retained_messages_max: int = Field(100_000, ge=0)
    """Maximum number of retained messages."""
    retained_bytes_max: int | None = Field(None, ge=0)
    """Maximum size of retained messages; if absent, its share, bytes."""
    sys_interval_s: float = Field(10.0, gt=0)
    """Interval of $SYS topics, seconds."""
    drain_s: float = Field(5.0, gt=0)
    """Maximum time to finish work in process after SIGTERM, seconds."""
    drain_over_s: float = Field(0.0, ge=0, le=86_400)
    """Time over which clients are disconnected after SIGTERM, or 0 for all at once; a cluster
    paces them by the gates of its other nodes instead, seconds."""
    server_reference: str | None = Field(None, min_length=1, max_length=1_000)
    """Other brokers for MQTT 5.0 clients when this one ends (0x9C instead of 0x8B), `HOST:PORT`,
    separated by spaces. In a cluster this node's own address, for clients of nodes that end."""


class StoreSettings(Section):
    """The store in which sessions, queues and retained messages survive."""

    kind: Literal["rocks", "memory", "redis"] = "rocks"
    """Store: RocksDB in the data directory (`rocks`), the memory of the process without durability
    (`memory`), or a Redis server (`redis`, section redis)."""
    data_dir: Path = Path("flowguard-data")
    """Data directory of RocksDB, which `serve --data` overrides."""
    layout: Literal["window", "status"] = "window"
    """Layout of queues in RocksDB; `status` is the published schema, for comparison."""
    durability: Literal["memory", "os", "fsync", "replicated", "fsync+replicated"] = "fsync"
    """Failure that acknowledged work survives: none (`memory`), of the process (`os`), of the
    machine (`fsync`), with Redis a fail-over (`replicated`), or both."""
    disk_reserve_bytes: int = Field(64 * MIB, ge=0)
    """Space to keep free on the disk, or below the maxmemory of Redis (at most an eighth of that).
    Below it the store is read-only, and durable work is rejected, bytes."""
    cache_bytes: int = Field(64 * MIB, ge=MIB)
    """Size of RocksDB's block cache; the default is capped by its share of the memory limit,
    bytes."""
    write_buffer_bytes: int = Field(32 * MIB, ge=MIB)
    """Size of the write buffer of each column family, before it is written as a table. All together
    have four times this size. The default is capped by its share of the memory limit, bytes."""
    wal_bytes_max: int = Field(256 * MIB, ge=MIB)
    """Size of the write-ahead log at which tables are written to shorten it, bytes."""
    blob_bytes_min: int = Field(4 * KIB, ge=64)
    """Minimum size of a payload that is stored in blob files, bytes."""
    open_files_max: int = Field(512, ge=64)
    """Maximum number of tables and blob files that RocksDB keeps open. These descriptors are
    reserved, too."""
    background_jobs: int = Field(2, ge=1, le=64)
    """Number of RocksDB threads that write and compact tables."""
    log_layout: Literal["bitmask", "skipstream", "reference"] = "bitmask"
    """Layout of the durable log in RocksDB, from its next generation on. `skipstream` groups topics
    of the same structure, with an index. `reference` reads and compares all messages."""
    application_store: Literal["log", "queues", "kafka"] = "log"
    """Store of messages for applications. `log` is the durable log, if the store has one; messages
    leave it only by retention. `queues` have the usual bounds. `kafka` uses topics of Kafka
    (section kafka)."""
    log_shards: int = Field(4, ge=1, le=256)
    """Number of streams that share the publishers, from the next generation on."""
    log_retention_s: float = Field(86_400.0, gt=0)
    """Time that the durable log keeps messages, plus an eighth at most, seconds."""
    log_bytes_max: int = Field(4096 * MIB, ge=MIB)
    """Maximum size of the durable log before compression; beyond it the oldest eighth is dropped,
    bytes."""


class RedisSettings(Section):
    """The server where sessions live with `store.kind = "redis"` (docs/operate/redis.md)."""

    url: str = "redis://127.0.0.1:6379/0"
    """Address of the server: redis://HOST:PORT/DB, rediss://USER:PASSWORD@HOST for TLS, or
    unix:///PATH. A Redis Cluster is redis+cluster://HOST:PORT,HOST:PORT, with some of its nodes. A
    server with Sentinels is redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB. Both also take rediss."""
    prefix: str = Field("fg1", min_length=1, max_length=100)
    """First part of all keys; only one broker at a time uses it."""
    layout: Literal["stream", "zset"] = "stream"
    """Layout of queues in Redis. `stream` is one stream per queue. `zset` is the published schema:
    a sorted set of references, and a string per message. It limits `session.queue_messages_max` to
    65,535."""
    replicas: int = Field(1, ge=1, le=100)
    """Number of replicas that must confirm each commit, with `store.durability = "replicated"`."""
    timeout_s: float = Field(5.0, gt=0)
    """Maximum wait for an answer; then the broker reconnects, seconds."""
    lease_s: float = Field(3.0, ge=0.5)
    """Time without a sign of life after which another broker may take over, seconds."""
    takeover: bool = False
    """Wait until the broker that uses the prefix ends, instead of failing at start."""

    @field_validator("prefix")
    @classmethod
    def _no_tag(cls, prefix: str) -> str:
        if set(prefix) & set("{}") or not prefix.isprintable() or " " in prefix:
            raise ValueError("a prefix has no braces, no spaces and no control characters")
        return prefix


class TelemetrySettings(Section):
    """The broker's recording of itself (docs/operate/analysis.md)."""

    record_dir: Path | None = None
    """Directory for recorded runs, one subdirectory per run; if absent, no recording there."""
    record_topic: str | None = None
    """Kafka topic for recorded runs, instead of a directory: kafka://HOST:PORT,.../TOPIC."""
    run_s: float = Field(3_600.0, ge=0.1)
    """Duration of a run; then it can be analysed and the next one begins, seconds."""
    rotate_s: float = Field(60.0, ge=0.1)
    """Maximum time until a file of a run is completed, for programs that follow the run,
    seconds."""
    rotate_rows: int = Field(1_000_000, ge=1_000)
    """Maximum number of rows in a file of a run."""
    keep_bytes: int = Field(1024 * MIB, ge=MIB)
    """Maximum size of all runs; beyond it the oldest are deleted. A run ends at a quarter of this
    size, bytes."""
    buffer_rows_max: int = Field(100_000, ge=1_000)
    """Maximum number of rows waiting for the disk or Kafka; beyond it rows are dropped. At most
    half may be attempts."""
    buffer_bytes_max: int = Field(32 * MIB, ge=MIB)
    """Maximum size of these rows, bytes."""

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


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: Final = get_args(LogLevel)
LOG_KINDS: Final = ("authentication", "clients", "publishes", "subscriptions", "transport")
"""Kinds of log events that may have a level of their own: keys of `LogSettings`."""


class LogSettings(Section):
    """The log on standard error."""

    format: Literal["human", "json"] = "human"
    """Text for people (`human`), or one JSON object per line (`json`) with event, level, timestamp
    and fields."""
    level: LogLevel = "info"
    """Lowest level that is logged."""
    authentication: LogLevel | None = None
    """Level for failed authentications (warning); default: `level`."""
    clients: LogLevel | None = None
    """Level for clients that connect and disconnect (debug); default: `level`."""
    publishes: LogLevel | None = None
    """Level for rejected PUBLISH packets (warning); default: `level`."""
    subscriptions: LogLevel | None = None
    """Level for filters: granted (debug), rejected (warning); default: `level`."""
    transport: LogLevel | None = None
    """Level for failures of TLS, WebSocket and PROXY protocol (warning); default: `level`."""


class Settings(Section):
    """All of a node's settings."""

    flow: FlowSettings = FlowSettings()
    session: SessionSettings = SessionSettings()
    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    redis: RedisSettings = RedisSettings()
    cluster: ClusterSettings = ClusterSettings()
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
        """Return True if one of the two is not set, so that it will be derived from the other."""
        if self._value(greater) is None:
            return True
        _, _, name = lesser.partition(".")
        same = lesser == "session." + greater.removeprefix("node.")
        return same and name not in self.session.model_fields_set

    def _value(self, key: str) -> float:
        section, _, name = key.partition(".")
        value: float = getattr(getattr(self, section), name)
        return value
