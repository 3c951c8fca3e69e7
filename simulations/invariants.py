"""Invariants that hold at every instant of a run (docs/explain/overload.md).

The model counts packets in process and waiting clients itself; this module compares its counts with
flowguard's windows and gate. Cheap comparisons follow every step of every loop. Sums over all
connections follow once per virtual second, less often for a large crowd, and at the end. The first
violation ends the run and names its seed. Promises of flowguard's policy are checked for it alone.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from flowguard.config import PolicyName
from flowguard.flow.load.signals import TICK_S
from flowguard.flow.policies import WITH_BUDGETS
from flowguard.node.loop.turns import ACCEPTS_MAX
from simulations.crowd.connection import (
    CONNECTED,
    CONNECTING,
    ENDED,
    OPENED,
    SERVED,
    WAITING,
    Connection,
    ServerEnd,
)
from simulations.process.wide import is_wide

if TYPE_CHECKING:
    from simulations.crowd.clients import Population
    from simulations.process.broker import Broker
    from simulations.world import World

WINDOW: Final = "1 window"
CONSERVATION: Final = "2 conservation"
UNFINISHED_BYTES: Final = "3 unfinished bytes"
KEEP_ALIVE: Final = "5 keep-alive"
IDLE: Final = "10 no refusal when idle"
ONE_OUTCOME: Final = "11 one outcome"
REFUSAL_BUDGET: Final = "16 refusal budget"

CALM_BELOW: Final = 0.8
"""Pressure below which no client is rejected or paused."""
CENSUS_S: Final = 1.0
CENSUS_CLIENTS_PER_S: Final = 50_000
"""Clients checked in a virtual second, on average: twice the crowd, half as often."""
WITHIN_WINDOW_MAX: Final[frozenset[PolicyName]] = WITH_BUDGETS | {
    "level-map",
    "emqx-flag",
    "flashmq-gate",
    "vegas",
    "gradient2",
}
"""Policies with windows of at most `flow.window_max`; others have windows of their own, or none."""


@dataclass(frozen=True, slots=True)
class Violation:
    node: int | None
    """The node, or None for all nodes together."""
    t_s: float
    invariant: str
    """Number and name of the invariant in docs/explain/overload.md."""
    detail: str
    policy: PolicyName
    seed: int

    def __str__(self) -> str:
        where = "" if self.node is None else f" at node {self.node}"
        return (
            f"invariant {self.invariant} violated{where} after {self.t_s:g} s: {self.detail} "
            f"(policy {self.policy}, seed {self.seed})"
        )


@final
class Invariants:
    """The checks of a world that has not begun."""

    def __init__(self, world: "World") -> None:
        assert not world.engine.now_s
        settings = world.settings
        topics = [p.topic for p in world.populations if p.topic is not None]
        cost = world.machines[0].cost
        self._world = world
        self._is_flowguard = settings.policy == "flowguard"
        is_bounded = settings.policy in WITHIN_WINDOW_MAX
        self._window_max = float(settings.window_max) if is_bounded else float("inf")
        self._payload_max = max((t.payload_bytes for t in topics), default=0)
        costs = [cost.of(t.deliveries_max, t.payload_bytes) for t in topics]
        self._cost_max = max(costs, default=1)
        self._fills_windows = any(is_wide(world.scenario.node, t.deliveries_max) for t in topics)
        self._buffer_max = settings.connect_buffer_max
        self._buffer_bytes_max = settings.connect_buffer_bytes_max
        self._refusing = [_Refusing(settings.refusal_share) for _ in world.machines]
        self._census_s = max(CENSUS_S, world.scenario.clients / CENSUS_CLIENTS_PER_S)
        world.invariants = self
        self._watch(self._census_s)

    # --- after every step of a loop ----------------------------------------------------------

    def _broker(self, node: int) -> "Broker":
        broker = self._world.machines[node].broker
        assert broker is not None
        return broker

    def after_step(self, node: int) -> None:
        """Check after a turn, or after the tasks between two turns."""
        broker = self._broker(node)
        self._check_windows(broker)
        self._check_gate(broker)
        if self._is_flowguard:
            detail = self._refusing[node].after_step(broker)
            if detail is not None:
                self._world.violate(node, REFUSAL_BUDGET, detail)

    def _check_windows(self, broker: "Broker") -> None:
        window, packets = broker.guard.window, broker.packets
        granted, limit = broker.guard.grant.window, window.limit
        if not (0.0 < granted <= self._window_max and 1 <= limit <= granted + 1.0):
            self._world.violate(broker.node, WINDOW, f"granted {granted:g}, in force {limit}")
        # One packet is always possible, whatever it weighs; a wide one fills the window.
        most = max(limit, self._cost_max, window.limit_max if self._fills_windows else 0)
        if window.used_max > most:
            detail = f"a client had {window.used_max} units in process with a window of {limit}"
            self._world.violate(broker.node, WINDOW, detail)
        units, size_bytes = window.in_process, window.in_process_bytes
        if units != packets.in_process_units or size_bytes != packets.in_process_bytes:
            self._world.violate(
                broker.node,
                CONSERVATION,
                f"windows have {units} units and {size_bytes} bytes in process, "
                f"admitted and not done are {packets.in_process_units} and "
                f"{packets.in_process_bytes}",
            )
        if size_bytes > window.bytes_max + len(window.busy) * self._payload_max:
            detail = f"{size_bytes} bytes of {len(window.busy)} clients, budget {window.bytes_max}"
            self._world.violate(broker.node, UNFINISHED_BYTES, detail)

    def _check_gate(self, broker: "Broker") -> None:
        gate, waiting = broker.guard.gate, broker.entrance.waiting_count
        served = broker.entrance.served_count + len(broker.entrance.abandoned)
        if gate.in_process != served:
            detail = f"the gate has {gate.in_process} in process, {served} are served"
            self._world.violate(broker.node, CONSERVATION, detail)
        buffered = gate.buffered
        # A superseded CONNECT has left the buffer; the gate drops it when it is asked next.
        if buffered != waiting and (buffered > waiting or not gate.is_ready):
            detail = f"the gate has {buffered} in its buffer, {waiting} wait for their outcome"
            self._world.violate(broker.node, ONE_OUTCOME, detail)
        if buffered and (
            buffered > self._buffer_max or gate.buffered_bytes > self._buffer_bytes_max
        ):
            detail = f"the buffer has {buffered} CONNECTs of {gate.buffered_bytes} bytes"
            self._world.violate(broker.node, ONE_OUTCOME, detail)

    # --- what a broker is about to do --------------------------------------------------------

    def may_decide(self, connection: Connection) -> bool:
        """Check that a CONNECT may have its outcome now: the first one, and its socket is open."""
        if CONNECTING <= connection.state <= WAITING:
            return True
        what = "its socket was closed" if connection.state == ENDED else "it had one"
        client_id = connection.population.client_id(connection.client)
        self._world.violate(
            connection.broker.node, ONE_OUTCOME, f"an outcome for {client_id} after {what}"
        )
        return False

    def on_refusal(self, connection: Connection) -> None:
        """Check that a CONNECT which has not waited is refused only under load."""
        if connection.state == CONNECTING and self._buffer_max and self._is_idle(connection.broker):
            self._found_idle(connection.broker, "a CONNECT is refused")

    def on_rest(self, node: int) -> None:
        """Check that sockets are left to the next tick only under load.

        Otherwise accepted connections with unread CONNECTs must take all free slots.
        """
        broker = self._broker(node)
        if not self._is_idle(broker):
            return
        gate = broker.guard.gate
        unread = sum(connection.state == OPENED for connection in broker.connections)
        if unread < gate.limit - gate.in_process:
            self._found_idle(broker, f"sockets are not accepted, {unread} CONNECTs are unread,")

    def _is_idle(self, broker: ServerEnd) -> bool:
        """Whether a broker under flowguard's law has no load."""
        guard = broker.guard
        is_calm = guard.grant.pressure.value < CALM_BELOW and not guard.gate.buffered
        return self._is_flowguard and is_calm

    def _found_idle(self, broker: ServerEnd, what: str) -> None:
        pressure = broker.guard.grant.pressure.value
        detail = f"{what} at a pressure of {pressure:.2f}, with an empty buffer"
        self._world.violate(broker.node, IDLE, detail)

    def on_keep_alive(self, connection: Connection) -> None:
        """Check that a client disconnected by keep-alive was silent for too long."""
        if not self._is_flowguard:
            return  # Other policies let the loop be late, so it reads a PINGREQ too late.
        inbound = connection.inbound
        waiting_count = len(inbound.waiting) if inbound is not None else 0
        if connection.is_ready or connection.pings or waiting_count:
            client_id = connection.population.client_id(connection.client)
            detail = (
                f"{client_id} is disconnected as silent: {connection.pings} PINGREQ and "
                f"{waiting_count} packets of it were not looked at"
            )
            self._world.violate(connection.broker.node, KEEP_ALIVE, detail)

    # --- sums over all connections -----------------------------------------------------------

    def _watch(self, when_s: float) -> None:
        self._world.engine.watch(when_s, self._on_time, when_s)

    def _on_time(self, when_s: float) -> None:
        self._take_census()
        self._watch(when_s + self._census_s)

    def at_end(self) -> None:
        self._take_census()
        for population in self._world.populations:
            self._check_attempts(population)

    def _take_census(self) -> None:
        for machine in self._world.machines:
            if machine.broker is not None:
                self._count_units(machine.broker)
                self._count_connections(machine.broker)

    def _count_units(self, broker: "Broker") -> None:
        window = broker.guard.window
        units = sum(inflight.in_process for inflight in window.busy)
        if units != window.in_process:
            detail = f"{units} units in process in all windows, {window.in_process} at the node"
            self._world.violate(broker.node, CONSERVATION, detail)

    def _count_connections(self, broker: "Broker") -> None:
        served_count = waiting_count = packets_count = 0
        # Sets of numbers: a tuple for each would keep the garbage collector busy.
        waiting: dict[str, set[int]] = {p.name: set() for p in self._world.populations}
        for connection in broker.connections:
            inbound = connection.inbound
            if inbound is not None:
                packets_count += len(inbound.waiting)
            elif connection.state == CONNECTED:
                continue  # Most of a crowd.
            if connection.state == SERVED:
                served_count += 1
            elif connection.state == WAITING:
                waiting_count += 1
                waiting[connection.population.name].add(connection.client)
        if packets_count != broker.packets.waiting_count:
            detail = f"{packets_count} packets wait, {broker.packets.waiting_count} are counted"
            self._world.violate(broker.node, CONSERVATION, detail)
        counted = (broker.entrance.served_count, broker.entrance.waiting_count)
        if (served_count, waiting_count) != counted:
            detail = f"{served_count} served and {waiting_count} wait, counted are {counted}"
            self._world.violate(broker.node, CONSERVATION, detail)
        clients_count = sum(map(len, waiting.values()))
        if broker.guard.gate.buffered > clients_count:
            detail = (
                f"{broker.guard.gate.buffered} CONNECTs in the buffer, of {clients_count} clients"
            )
            self._world.violate(broker.node, ONE_OUTCOME, detail)

    def _check_attempts(self, population: "Population") -> None:
        current = [c for c in population.connections if c is not None]
        under_way = sum(connection.outcome is None for connection in current)
        ended = sum(population.outcomes)
        if ended + under_way != population.attempts_count:
            self._world.violate(
                None,
                CONSERVATION,
                f"{population.name}: {population.attempts_count} attempts, of which {ended} have "
                f"ended and {under_way} are under way",
            )


@final
@dataclass(slots=True, eq=False)
class _Refusing:
    """One node's work of accepting and refusing since its buffer was empty last: a leaky bucket.

    It overflows where flowguard's own budget would, plus the work that may be under way when
    that is spent: the sockets of one accept, and the refusals of those accepted before.
    """

    _share: float
    _life: "Broker | None" = None
    _emptied_count: int = 0
    _spent_s: float = 0.0
    _at_s: float = 0.0
    _debt_s: float = 0.0
    _bucket_s: float = 0.0

    def after_step(self, broker: "Broker") -> str | None:
        """The violation, if there is one."""
        clock_s, spent_s = broker.loop.clock_s, broker.counters.refusing_s
        work_s, self._spent_s = spent_s - self._spent_s, spent_s
        elapsed_s, self._at_s = clock_s - self._at_s, clock_s
        if not broker.entrance.waiting_count:
            self._life = None
            return None
        if broker is not self._life or broker.entrance.emptied_count != self._emptied_count:
            self._life, self._emptied_count = broker, broker.entrance.emptied_count
            self._debt_s = self._bucket_s = 0.0
            return None
        self._debt_s = max(0.0, self._debt_s - self._share * elapsed_s) + work_s
        # A machine may become slower or faster meanwhile.
        self._bucket_s = max(self._bucket_s, self._bucket_now_s(broker))
        if self._debt_s <= self._bucket_s:
            return None
        over_s = self._debt_s - self._bucket_s
        return f"accepting and refusing took {over_s:.4f} s more than {self._share:.0%}"

    def _bucket_now_s(self, broker: "Broker") -> float:
        plan = broker.plan
        each_s = plan.accept_s + plan.tls_s + 2.0 * plan.refuse_s
        slowness = broker.machine.slowness * (1.0 + plan.noise)
        return self._share * TICK_S + ACCEPTS_MAX * each_s * slowness
