"""Scenario: the input of a simulation as a frozen record: clients, nodes, costs of work, faults.

Every field has a default. Unknown keys and impossible values are rejected by name. Several
policies simulate the same scenario.
"""

from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from flowguard.config import KIB, MIB, FlowSettings
from simulations.scenario_files.kinds import wrong_kind

SEED_MAX: Final = 2**63 - 1
"""The largest seed that a recording can store."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _kind(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        kind = wrong_kind(cls.model_fields[info.field_name].annotation, value)
        if kind is not None:
            raise PydanticCustomError(f"{kind}_type", "wrong kind")
        return value


class NodePlan(_Part):
    """One broker process: the costs of work in its loop, and its memory."""

    accept_s: NotNegative = 0.000_075
    """Accepting a socket and decoding its CONNECT, seconds of the loop."""
    tls_s: NotNegative = 0.0
    """A TLS handshake, unless the socket is closed at once, seconds of the loop."""
    refuse_s: NotNegative = 0.000_03
    """Rejecting a CONNECT with 0x89 (Server busy), seconds of the loop."""
    connect_s: Positive = 0.001_425
    """Serving an admitted CONNECT, seconds of the loop."""
    close_s: NotNegative = 0.000_01
    """Handling a closed connection, seconds of the loop."""
    read_s: NotNegative = 0.0
    """A read from a client and the send of its answers, for any number of packets, seconds of the
    loop."""
    publish_s: Positive = 0.000_1
    """A PUBLISH and its acknowledgement, seconds of the loop."""
    send_s: NotNegative = 0.0
    """A send to a subscriber and the read of its acknowledgements, for any number of messages,
    seconds of the loop."""
    delivery_s: NotNegative = 0.000_03
    """A message to one subscriber and its acknowledgement, seconds of the loop."""
    queue_s: NotNegative = 0.0
    """Queuing and storing a message for each further durable subscriber, seconds of the loop."""
    handoff_s: NotNegative = 0.0
    """Handing a batch of any size to the store's thread and back, seconds of the loop."""
    forward_s: NotNegative = 0.0
    """A message to another node, for any number of subscribers, seconds of the loop."""
    subscribe_s: NotNegative = 0.000_1
    """A SUBSCRIBE, seconds of the loop."""
    wake_s: NotNegative = 0.0
    """Waking up an idle loop, seconds of the loop."""
    ping_s: NotNegative = 0.000_01
    """A PINGREQ, seconds of the loop."""
    noise: float = Field(0.0, ge=0, le=1)
    """Variation of work, 0 to 1: a task takes U(1 - noise, 1 + noise) times its cost."""
    listen_backlog: int = Field(4_096, ge=1)
    """Maximum number of sockets in the listen backlog; further SYNs are lost."""
    accepts_first: bool = False
    """True if sockets are accepted before all other work, as by acceptor threads; false if they
    alternate with other work, as in flowguard's reactor."""
    takes_turns: bool = True
    """True if clients and backlogs have bounded time slices, as in flowguard's reactor; false if
    each one is served completely."""
    memory_max_bytes: int = Field(1_024 * MIB, ge=MIB)
    """Maximum memory of the process, which dies beyond it, bytes."""
    restart_s: Positive | None = None
    """Time until a process that ran out of memory runs again, seconds; absent: never."""
    process_bytes: int = Field(64 * MIB, ge=0)
    """Memory of the process without clients, bytes."""
    connection_bytes: int = Field(2 * KIB, ge=0)
    """Memory of a connection, bytes."""
    connecting_bytes: int = Field(0, ge=0)
    """Additional memory until it is connected (buffers, TLS, authentication), bytes."""
    packet_bytes: int = Field(KIB, ge=0)
    """Memory of a packet that waits or is in process, without its payload, bytes."""


class StorePlan(_Part):
    """The store of a node: one commit at a time; waiting operations join the next one."""

    commit_s: NotNegative = 0.001
    """The fixed cost of a commit, seconds."""
    op_s: NotNegative = 0.000_02
    """The cost of each operation in a commit, seconds."""
    page_s: NotNegative = 0.001
    """Time to read a page of a backlog, in parallel with commits, seconds."""
    commit_times: tuple[tuple[NotNegative, Positive], ...] = ()
    """Pairs `[seconds, weight]` from which the fixed cost of each commit is drawn, instead of
    `commit_s`; empty: none."""
    immediate: bool = False
    """True if the loop itself commits at the end of a slice, as with a store in memory."""


class NetworkPlan(_Part):
    """Latencies between nodes and clients."""

    latency_s: NotNegative = 0.001
    """Latency between client and node, one way, seconds."""
    peer_latency_s: NotNegative = 0.000_5
    """Latency between nodes, one way, seconds."""
    replicas: int = Field(1, ge=1)
    """Number of nodes that store a message before it is acknowledged, this one included."""
    gossip_late_s: NotNegative = 0.0
    """Additional delay of gossip between nodes, U(0, this), seconds."""
    shards: int = Field(6, ge=1, le=256)
    """Number of shards, each at one node, for clients that use the node of their shard."""
    lease_s: float = Field(3.0, ge=0.5)
    """Time without a sign of life after which the shards of a node move, seconds."""
    start_s: NotNegative = 2.0
    """Time from the decision that a shard moves until its new node serves it, seconds."""


class RetryPlan(_Part):
    """The reaction of a client to a failed attempt."""

    kind: Literal["none", "fixed", "backoff"] = "backoff"
    """`none`: no retry; `fixed`: retry after `first_s`; `backoff`: double the wait, with jitter."""
    first_s: Positive = 1.0
    """The first wait, seconds."""
    max_s: Positive = 60.0
    """The longest wait, jitter included, seconds."""
    obedient: float = Field(0.0, ge=0, le=1)
    """Share of clients that obey a `retry-after-ms` hint, 0 to 1."""
    tries: int | None = Field(None, ge=1, le=255)
    """Number of failed attempts in a row after which a client gives up; absent: never."""


class TracePlan(_Part):
    """Arrivals or messages over time; see `simulations.scenario_files.traces` for files."""

    file: str = ""
    """CSV or Parquet file, or directory of a recorded run; relative to the scenario's file."""
    squeeze: Positive = 1.0
    """Factor by which the trace is replayed faster."""
    scale: Positive = 1.0
    """Factor for the counts."""
    points: tuple[tuple[NotNegative, NotNegative], ...] = Field((), min_length=1)
    """Pairs `[t_s, count]`, each valid until the next one; read from `file` if given."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        for (before_s, _), (t_s, _) in pairwise(self.points):
            if t_s <= before_s:
                raise ValueError(f"points: {t_s:g} is not after {before_s:g}")
        if not sum(count for _, count in self.points):
            raise ValueError("points: no client ever connects")
        return self


class PublishPlan(_Part):
    """The messages that a connected client publishes."""

    rate_per_s: Positive | None = None
    """Rate of a Poisson process (open loop); absent: closed loop, limited by acknowledgements."""
    trace: TracePlan | None = None
    """Open loop: messages of the whole population, instead of `rate_per_s`."""
    collected: int = Field(0, ge=0)
    """Open loop: additional messages that are due when a client first connects."""
    outstanding: int = Field(10, ge=1, le=65_535)
    """Maximum number of unacknowledged messages; the server's Receive Maximum may be lower."""
    payload_bytes: int = Field(64, ge=0)
    """Payload of a message, bytes."""
    deadline_s: Positive = 3.0
    """Longest time from due to acknowledged that counts as in time, seconds."""
    to: str | None = None
    """Population that subscribes to the messages; absent: no client does."""
    spread: Literal["all", "one"] = "all"
    """Receivers: all subscribers, or one subscriber per publisher."""
    stored: bool = True
    """False if no session stores the messages, so that they wait for no commit of their own."""
    even: bool = False
    """True for equal gaps between a client's messages, instead of those of a Poisson process."""
    v5: bool = True
    """True for MQTT 5.0, which has a Receive Maximum; false for 3.1.1."""


class PopulationPlan(_Part):
    """Clients that behave alike."""

    clients: int = Field(1_000, ge=1)
    """Number of clients."""
    start_s: NotNegative = 0.0
    """Time of the first arrival, seconds."""
    start_over_s: NotNegative = 1.0
    """Duration of all arrivals, evenly spread, seconds."""
    arrivals: TracePlan | None = None
    """Trace of arrivals, instead of evenly spread ones; it determines `clients` if absent."""
    stay_s: NotNegative | None = None
    """Time from connection to final disconnection of a client, seconds; absent: it stays."""
    node: Literal["round-robin", "random", "balanced", "next", "shard"] = "balanced"
    """Node of an attempt: each in turn; any; any live one, as by a load balancer; the client's
    last node, and the next one after a failure; or the node of its shard."""
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Nodes that the clients use, from 0; empty: all."""
    timeout_s: Positive = 10.0
    """Time that a client waits for its CONNACK, seconds."""
    durable: bool = True
    """True if sessions are stored and survive their connections."""
    keep_alive_s: NotNegative = 0.0
    """Idle time after which a client sends PINGREQ, seconds; 0: no PINGREQ."""
    retry: RetryPlan = RetryPlan()
    publish: PublishPlan | None = None
    subscribes: bool = False
    """True if each client subscribes after it has connected."""
    queued: int = Field(0, ge=0)
    """Number of messages that wait for each client when it connects."""
    queued_bytes: int = Field(64, ge=0)
    """Payload of each waiting message, bytes."""


class Fault(_Part):
    """A fault from `at_s` until `until_s`."""

    kind: Literal["node_down", "pause", "link_cut", "slow_cpu", "slow_store", "store_stop"]
    """`node_down` ends the process; `pause` stops it until `until_s`."""
    at_s: NotNegative
    """Start, seconds."""
    until_s: Positive | None = None
    """End, seconds; absent: none."""
    node: int = Field(0, ge=0)
    """The node, from 0."""
    peer: int | None = Field(None, ge=0)
    """The other end of a cut link; absent: all others."""
    factor: Positive = 1.0
    """Slowdown factor of slow_cpu and slow_store."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.until_s is not None and self.until_s <= self.at_s:
            raise ValueError(f"until_s {self.until_s:g} is not after at_s {self.at_s:g}")
        if self.until_s is None and self.kind == "pause":
            raise ValueError("until_s is missing: a pause has an end")
        return self


class Scenario(_Part):
    """A scenario: the input of a simulation."""

    title: str = ""
    """One line about the scenario."""
    description: str = ""
    """Purpose of the scenario, and figures to look at."""
    seed: int = Field(1, ge=0, le=SEED_MAX)
    """The seed of all random draws."""
    nodes: int = Field(1, ge=1, le=256)
    """Broker nodes."""
    duration_s: Positive = 60.0
    """Maximum virtual time, seconds."""
    ends_when_connected: bool = False
    """True if the run ends when every client is connected."""
    trigger_at_s: NotNegative | None = None
    """Start of the disturbance, seconds; absent: start of the first fault."""
    trigger_until_s: Positive | None = None
    """End of the disturbance, seconds; absent: end of the last fault."""
    node: NodePlan = NodePlan()
    store: StorePlan = StorePlan()
    network: NetworkPlan = NetworkPlan()
    flow: FlowSettings = FlowSettings()
    populations: dict[str, PopulationPlan] = Field(
        default={"clients": PopulationPlan()}, min_length=1
    )
    faults: tuple[Fault, ...] = ()

    @property
    def clients(self) -> int:
        return sum(population.clients for population in self.populations.values())

    @property
    def trigger_s(self) -> tuple[float | None, float | None]:
        """Return start and end of the disturbance, or None if they are unknown."""
        begin_s, end_s = self.trigger_at_s, self.trigger_until_s
        if begin_s is None and self.faults:
            begin_s = min(fault.at_s for fault in self.faults)
        ends_s = [fault.until_s for fault in self.faults if fault.until_s is not None]
        if end_s is None and ends_s and len(ends_s) == len(self.faults):
            end_s = max(ends_s)
        return begin_s, end_s

    @field_validator("flow", mode="before")
    @classmethod
    def _limits(cls, value: Any) -> Any:
        wrong: list[InitErrorDetails] = []
        for key, part in value.items() if isinstance(value, dict) else ():
            field = FlowSettings.model_fields.get(key)
            kind = None if field is None else wrong_kind(field.annotation, part)
            if kind is not None:
                error = PydanticCustomError(f"{kind}_type", "wrong kind")
                wrong.append(InitErrorDetails(type=error, loc=(key,), input=part))
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        for number, fault in enumerate(self.faults):
            for key in ("node", "peer"):
                index = getattr(fault, key)
                if index is not None and index >= self.nodes:
                    raise ValueError(f"faults.{number}.{key} is {index}: there are {self.nodes}")
        if self.network.replicas > self.nodes:
            raise ValueError(
                f"network.replicas is {self.network.replicas}: there are {self.nodes} nodes"
            )
        for name, population in self.populations.items():
            for index in population.at:
                if index >= self.nodes:
                    raise ValueError(
                        f"populations.{name}.at is {index}: there are {self.nodes} nodes"
                    )
            to = population.publish.to if population.publish else None
            if to is not None and not (to in self.populations and self.populations[to].subscribes):
                raise ValueError(
                    f"populations.{name}.publish.to is {to}: no population of that name subscribes"
                )
        return self
