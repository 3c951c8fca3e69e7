"""Scenario: what is simulated, as a frozen record: clients, nodes, what work costs, what breaks.

Every field has a default, and a unit where it has one; unknown keys and impossible values are
refused by their names. Several policies simulate the same scenario.
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
from simulations.kinds import wrong_kind

SEED_MAX: Final = 2**63 - 1
"""The largest seed that a recording has room for."""

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
    """One broker process: what work costs its loop, and what its memory holds."""

    accept_s: NotNegative = 0.000_075
    """Accepting a socket and decoding its CONNECT, seconds of the loop."""
    tls_s: NotNegative = 0.0
    """A TLS handshake, paid on accept unless the socket is closed at once, seconds of the loop."""
    refuse_s: NotNegative = 0.000_03
    """Answering 137, seconds of the loop."""
    connect_s: Positive = 0.001_425
    """Serving an admitted CONNECT, seconds of the loop."""
    close_s: NotNegative = 0.000_01
    """Noticing that a peer has closed, seconds of the loop."""
    read_s: NotNegative = 0.0
    """Reading what a client has sent and sending it the answers, however many packets that are,
    seconds of the loop."""
    publish_s: Positive = 0.000_1
    """A PUBLISH and its acknowledgement, seconds of the loop."""
    send_s: NotNegative = 0.0
    """Sending a subscriber what it is owed in a turn and reading its acknowledgements, however many
    messages that are, seconds of the loop."""
    delivery_s: NotNegative = 0.000_03
    """Sending a message to one subscriber, and its acknowledgement, seconds of the loop."""
    handoff_s: NotNegative = 0.0
    """Giving a batch to the thread of the store and taking it back, however large it is, seconds of
    the loop."""
    forward_s: NotNegative = 0.0
    """Giving a message to another node, however many subscribers it has there, seconds of the
    loop."""
    subscribe_s: NotNegative = 0.000_1
    """A SUBSCRIBE, seconds of the loop."""
    wake_s: NotNegative = 0.0
    """Waking up where there was nothing to do, seconds of the loop."""
    ping_s: NotNegative = 0.000_01
    """A PINGREQ, seconds of the loop."""
    noise: float = Field(0.0, ge=0, le=1)
    """How much a piece of work varies: it takes U(1 - noise, 1 + noise) times its cost, 0 to 1."""
    listen_backlog: int = Field(4_096, ge=1)
    """Sockets the kernel keeps until they are accepted; beyond it a SYN is lost."""
    accepts_first: bool = False
    """Whether all sockets are accepted before anything else is done, as by acceptor threads, or
    by turns with all other work, as flowguard's reactor does."""
    takes_turns: bool = True
    """Whether clients and backlogs have turns of bounded length, as in flowguard's reactor, or each
    is served until nothing of it is left."""
    memory_max_bytes: int = Field(1_024 * MIB, ge=MIB)
    """Memory beyond which the process dies, bytes."""
    restart_s: Positive | None = None
    """Time after which a process that ran out of memory is back; absent: never, seconds."""
    process_bytes: int = Field(64 * MIB, ge=0)
    """Memory of the process without clients, bytes."""
    connection_bytes: int = Field(2 * KIB, ge=0)
    """Memory of a connection, bytes."""
    connecting_bytes: int = Field(0, ge=0)
    """Further memory until it is connected: buffers, TLS, authentication; bytes."""
    packet_bytes: int = Field(KIB, ge=0)
    """Memory of a packet besides its payload while it waits or is in process, bytes."""


class StorePlan(_Part):
    """The store of a node: one commit at a time, what waits rides the next one."""

    commit_s: NotNegative = 0.001
    """The fixed cost of a commit, seconds."""
    op_s: NotNegative = 0.000_02
    """The cost of each operation in a commit, seconds."""
    page_s: NotNegative = 0.001
    """Reading a page of a backlog, beside the commits, seconds."""
    immediate: bool = False
    """Whether nothing ever waits for it, as for a store in memory: the loop itself commits, at the
    end of a slice."""


class NetworkPlan(_Part):
    """Distances between nodes and clients, as times."""

    latency_s: NotNegative = 0.001
    """Latency between client and node, one way, seconds."""
    peer_latency_s: NotNegative = 0.000_5
    """Latency between nodes, one way, seconds."""
    replicas: int = Field(1, ge=1)
    """Nodes that must have stored something before it is acknowledged, this one included."""
    gossip_late_s: NotNegative = 0.0
    """Lateness of what one node tells another: U(0, this), besides the latency, seconds."""


class RetryPlan(_Part):
    """The reaction of a client to a failed attempt."""

    kind: Literal["none", "fixed", "backoff"] = "backoff"
    """`none`: gives up; `fixed`: waits `first_s`; `backoff`: waits twice as long each time, with
    jitter."""
    first_s: Positive = 1.0
    """The first wait, seconds."""
    max_s: Positive = 60.0
    """The longest wait, jitter included, seconds."""
    obedient: float = Field(0.0, ge=0, le=1)
    """Share of clients that come back when `retry-after-ms` says, where it says so, 0 to 1."""
    tries: int | None = Field(None, ge=1, le=255)
    """Failed attempts in a row after which a client gives up; absent: it never does."""


class TracePlan(_Part):
    """A recorded course of arrivals or messages; see `simulations.traces` for files."""

    file: str = ""
    """CSV, Parquet, or the directory of a recorded run; relative to the scenario's file."""
    squeeze: Positive = 1.0
    """Factor by which it is faster than it was."""
    scale: Positive = 1.0
    """Factor by which the counts are larger."""
    points: tuple[tuple[NotNegative, NotNegative], ...] = Field((), min_length=1)
    """`[t_s, count]` each: so many from then to the next one; read from `file` if it is given."""

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
    """Open loop: a Poisson process; absent: closed loop, as fast as acknowledgements come."""
    trace: TracePlan | None = None
    """Open loop: the messages of the whole population together, instead of `rate_per_s`."""
    collected: int = Field(0, ge=0)
    """Open loop: messages that are due at once when a client first connects, besides."""
    outstanding: int = Field(10, ge=1, le=65_535)
    """Messages without acknowledgement at a time; the server's Receive Maximum may be less."""
    payload_bytes: int = Field(64, ge=0)
    """Payload of a message, bytes."""
    deadline_s: Positive = 3.0
    """Time after a message was due until which its acknowledgement counts, seconds."""
    to: str | None = None
    """Population whose subscribers get the messages; absent: nobody subscribes."""
    spread: Literal["all", "one"] = "all"
    """Every message to all of them, or each publisher to one of its own."""
    v5: bool = True
    """Whether clients are told a Receive Maximum; 3.1.1 cannot be told."""


class PopulationPlan(_Part):
    """Clients that behave alike."""

    clients: int = Field(1_000, ge=1)
    """Number of clients."""
    start_s: NotNegative = 0.0
    """When the first of them comes, seconds."""
    start_over_s: NotNegative = 1.0
    """Time over which they come, evenly spread, seconds."""
    arrivals: TracePlan | None = None
    """Trace by which they come, instead of evenly; it gives `clients`, if absent."""
    stay_s: NotNegative | None = None
    """Time after its connection at which a client leaves, for good; absent: it stays, seconds."""
    node: Literal["round-robin", "random", "balanced", "next"] = "balanced"
    """Node to which an attempt goes: all nodes by turns; any; any that lives, as a load balancer
    chooses; or the client's last one, and on to the next after a failure."""
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """The only nodes they go to, from 0; empty: all."""
    timeout_s: Positive = 10.0
    """Time that a client waits for the answer to its CONNECT, seconds."""
    durable: bool = True
    """Whether sessions outlive their connections, so that they are stored."""
    keep_alive_s: NotNegative = 0.0
    """Longest silence of a client, which then sends PINGREQ; 0: none, seconds."""
    retry: RetryPlan = RetryPlan()
    publish: PublishPlan | None = None
    subscribes: bool = False
    """Whether each client subscribes once it is connected."""
    queued: int = Field(0, ge=0)
    """Messages that wait for each client when it comes."""
    queued_bytes: int = Field(64, ge=0)
    """Payload of each of these messages, bytes."""


class Fault(_Part):
    """Something that breaks, and is whole again at `until_s`."""

    kind: Literal["node_down", "pause", "link_cut", "slow_cpu", "slow_store", "store_stop"]
    """`node_down` ends the process, `pause` only stops it until `until_s`."""
    at_s: NotNegative
    """When it begins, seconds."""
    until_s: Positive | None = None
    """When it is over; absent: never, seconds."""
    node: int = Field(0, ge=0)
    """The node, from 0."""
    peer: int | None = Field(None, ge=0)
    """The other end of a cut link; absent: all others."""
    factor: Positive = 1.0
    """Factor by which it is slower: slow_cpu, slow_store."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.until_s is not None and self.until_s <= self.at_s:
            raise ValueError(f"until_s {self.until_s:g} is not after at_s {self.at_s:g}")
        if self.until_s is None and self.kind == "pause":
            raise ValueError("until_s is missing: a pause has an end")
        return self


class Scenario(_Part):
    """A scenario: all that is simulated."""

    title: str = ""
    """The scenario in a line."""
    description: str = ""
    """What it shows, and what to look at."""
    seed: int = Field(1, ge=0, le=SEED_MAX)
    """The seed of all random draws."""
    nodes: int = Field(1, ge=1, le=256)
    """Broker nodes."""
    duration_s: Positive = 60.0
    """Virtual time at most, seconds."""
    ends_when_connected: bool = False
    """Whether it ends as soon as every client is connected."""
    trigger_at_s: NotNegative | None = None
    """When the disturbance begins; absent: with the first fault, seconds."""
    trigger_until_s: Positive | None = None
    """When it is over; absent: with the last fault, seconds."""
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
        """When the disturbance begins and when it is over; None: never."""
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
