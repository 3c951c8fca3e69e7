"""Guard: the one entry to a broker. All work in process has passed it; other work waits outside.

It has no packets, sockets, journal or clock, so any broker can use it: clients are the host's own
objects, sizes and times are arguments. The host reports five events to the guard:

| event | the host calls | and gets |
|---|---|---|
| a CONNECT arrives | `offer`; `answered` after its CONNACK | an `Admission`; or later, `decided` |
| a packet starts | `room`, `admit` of its client's window | a number; at 0 it calls `paused` |
| a packet is done | `settle` of the same window | `schedule` of clients that may go on |
| a client has ended | `gone`, in any state | nothing is held for it any more |
| time has passed | `tick` every 100 ms, `turn` after a slice | new limits; the next clients |

The window is the guard's half of one client, `AdmissionWindow(guard.window)`: a packet is started
and ended by a few additions, and by no call of the guard.

The checks have this order, and the first one that fails is the cause:

    CONNECT ─▶ Gate: is a slot free? ─▶ WaitingRoom: entries, bytes, timeout? ─▶ it is rejected
    packet ──▶ AdmissionWindow: is its client below the limit? no: it waits for its own packets
             ▶ NodeWindow: is the host open? no: its client is among the starved
             ▶ NodeWindow: are the budgets of all clients spent? yes: FairPool, for a turn
             ▶ AdmissionWindow: has it credits, if a policy limits a rate? no: the next tick

    every 100 ms: Observer ─▶ Policy (laws, cluster) ─▶ Grant ─▶ the limits of all of these

A client without capacity is not read, so its TCP window fills and it stops sending. A limit that
shrinks takes back nothing that was admitted.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.cluster.pressure import Cluster
from flowguard.config import FlowSettings
from flowguard.flow.adaptive import Flowguard, Tell, tell_nobody
from flowguard.flow.gate.connect_gate import ConnectGate, use_limits
from flowguard.flow.load.observer import Observer
from flowguard.flow.load.time_share import TimeShare
from flowguard.flow.policies import WITH_BUDGETS, make_policy
from flowguard.flow.policy import Arrival, Gate, Grant, Policy
from flowguard.flow.shadow import Shadow
from flowguard.flow.verdict import ADMITTED, WAITS, Admission, Verdict
from flowguard.flow.windows.pool import FairPool
from flowguard.flow.windows.window import AdmissionWindow, NodeWindow

DECISIONS_MAX: Final = 256
ROUNDING: Final = 1e-9
"""A window of 9.9999999999 after a hundred multiplications is one of 10."""
TURNS_AT_ONCE: Final = 256
"""Maximum number of clients that share the budget of work in process. Packets that a client sent at
once stay together, and cost one system call instead of one each."""
RESIDENT_SHARE_MAX: Final = 1.1
"""Share of the memory limit above which resident memory is pressure, whatever the node counts."""
CONNECTS_MIN_S: Final = 0.000_5
"""Minimum time for waiting CONNECTs in a turn, seconds, even if other work took less."""
REFUSAL_S: Final = 0.000_1
"""Minimum cost of decoding and rejecting a CONNECT, seconds of the loop; the guard has no clock."""


class Guarded(Protocol):
    """The guard's view of a client; hashable by identity."""

    @property
    def tenant(self) -> str:
        """The tenant whose share it takes while clients take turns; fixed once it is connected."""

    @property
    def window(self) -> AdmissionWindow | None:
        """The client's window, or None before it is connected and after it has ended."""

    def schedule(self) -> None:
        """Schedule it for the next turn, because its window may have capacity."""


C = TypeVar("C", bound=Guarded)


def never() -> bool:
    """Return False, for a host whose own queue has no bound."""
    return False


@final
class Guard(Generic[C]):
    """One per node; `settings.policy` decides.

    `settings.shadow_policy` watches, under the limits of `shadow` if they are given. If only limits
    are given, their own policy watches, which is the same unless they name another one.
    """

    def __init__(
        self,
        settings: FlowSettings,
        memory_limit_bytes: int,
        decided: Callable[[C, Admission, float], None],
        *,
        draw: Callable[[], float],
        is_full: Callable[[], bool] = never,
        cluster: tuple[Cluster, Tell] | None = None,
        shadow: FlowSettings | None = None,
    ) -> None:
        """`decided(client, admission, now_s)` gets the outcome of a CONNECT that had to wait.

        It is called from `turn` and `tick`, once per CONNECT, and must not raise. `draw` is uniform
        in [0, 1), so that rejected clients do not reconnect together. `is_full` returns True if the
        host accepts no packets now, from any client; the host may close `window` itself as soon as
        it knows.

        `cluster` is the other nodes, and the function that sends them a record.
        """
        policy: Policy[C] = make_policy(
            settings.policy, settings, *(cluster or (None, tell_nobody))
        )
        self.shadow: Shadow[C] | None = None
        self.shadow_settings = settings if shadow is None else shadow
        """Settings of the shadow, if there is one."""
        watching = settings.shadow_policy or (None if shadow is None else shadow.policy)
        if watching is not None:
            second: Policy[C] = make_policy(watching, self.shadow_settings)
            policy = self.shadow = Shadow(policy, second)
        self.policy = policy
        self.gate: Gate[C] = policy.gate
        self.observer = Observer()
        self.pool: FairPool[C] = FairPool()
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_objective = settings.memory_objective
        assert settings.unfinished_bytes_max is not None, "`Bounds` must set unfinished_bytes_max"
        self._bytes_max = settings.unfinished_bytes_max
        if settings.policy in WITH_BUDGETS:
            self.window = NodeWindow(settings.window_max, settings.unfinished_max, self._bytes_max)
        else:
            self.window = NodeWindow(settings.window_max)
        self.window.divides = settings.window_floor < 1
        self._units_limit = self.window.units_max
        if self.shadow is not None:
            self.shadow.clients_over = self.window.over
        self.grant = Grant(float(settings.window_max))
        self.decisions: deque[tuple[float, Grant]] = deque(maxlen=DECISIONS_MAX)
        """The time and the grant: one entry per change of the window."""
        self._carry = 0.0
        self._connect_room_bytes = inf
        self.stuck_bytes = 0
        """Resident memory above the limit that stays although hardly any connection is left."""
        self.starved: dict[C, None] = {}
        """Clients that wait because the host accepts no packets."""
        self._rationed: dict[C, None] = {}
        """Clients that have spent their credits of this round (`Grant.credits`)."""
        self.refused_count = 0
        """Number of CONNECTs rejected since the start."""
        self._decided = decided
        self._draw = draw
        self._is_full = is_full
        self._heard_s: float | None = None
        self._connects = TimeShare(CONNECTS_MIN_S)

    def use(self, settings: FlowSettings) -> bool:
        """Use other limits from now on; return False if the policy cannot change them.

        Nothing that was admitted is taken back.
        """
        policy, gate, window = self.policy, self.gate, self.window
        if not (isinstance(policy, Flowguard) and isinstance(gate, ConnectGate)):
            return False
        policy.use(settings)
        use_limits(gate, settings)
        assert settings.unfinished_bytes_max is not None
        self._bytes_max = window.bytes_max = settings.unfinished_bytes_max
        self._memory_objective = settings.memory_objective
        window.limit_max, window.units_max = settings.window_max, settings.unfinished_max
        window.divides = settings.window_floor < 1
        return True

    # --- CONNECTs ----------------------------------------------------------------------------

    def offer(self, client: C, arrival: Arrival, now_s: float) -> Admission:
        """A CONNECT has arrived. It is admitted, rejected, or waits for the result in `decided`.

        An admitted client is `answered` in the end, or `gone`.
        """
        return self._admission(self.gate.offer(client, arrival, now_s), now_s)

    def refused(self, took_s: float, now_s: float, count: int = 1) -> None:
        """Add the cost of these rejections beyond what was booked already.

        Do not call it for a rejection that the host reports to the gate, together with its accept.
        """
        if took_s > count * REFUSAL_S:
            self.gate.spent(took_s - count * REFUSAL_S, now_s)

    def answered(self, client: C, now_s: float) -> None:
        """The CONNECT is answered, or is no work now: free its slot. Safe to repeat."""
        self.gate.settle(client, now_s)

    def _admission(self, verdict: Verdict, now_s: float) -> Admission:
        if verdict is Verdict.ADMIT:
            return ADMITTED
        if verdict is Verdict.DELAY:
            return WAITS
        if verdict is Verdict.DROP:
            return Admission(verdict, self.gate.reason)
        self.refused_count += 1
        retry_after_s = self.gate.retry_after_s(self._draw())
        self.gate.spent(REFUSAL_S, now_s)
        return Admission(verdict, self.gate.reason, retry_after_s)

    def _admit_waiting(self, now_s: float) -> None:
        """Admit waiting CONNECTs, one by one, for their share of the time.

        A host that reports no time for CONNECTs admits as many as there are slots.
        """
        observer, due_s, took_s = self.observer, self._connects.begin(now_s), 0.0
        for _ in range(self.gate.limit):  # A rejected CONNECT frees its slot at once.
            waiting = self.gate.admit_next(now_s, self._heard_s)
            if waiting is None:
                break
            client, verdict = waiting
            before_s = observer.connecting_s
            self._decided(client, self._admission(verdict, now_s), now_s)
            took_s += observer.connecting_s - before_s
            if took_s >= due_s:
                break
        self._connects.end(took_s)

    # --- packets -----------------------------------------------------------------------------

    def paused(self, client: C, now_s: float) -> None:
        """A client has packets and its window no capacity: remember it until there may be some.

        While clients take turns it waits in the pool, whether the host is closed or not; otherwise
        starved clients would fill the host's journal again first. A client that waits for a packet
        of its own is not remembered, because the host settles that packet.
        """
        node, window = self.window, client.window
        assert window is not None
        if node.closed and not node.shared:
            self.starved[client] = None
        elif window.is_full:
            return
        elif node.shared:
            cost = window.take_charge()
            self.pool.wait(client, client.tenant, 1.0, cost, now_s)
        else:
            assert node.credits is not None
            self._rationed[client] = None

    def gone(self, client: C, now_s: float) -> None:
        """Forget a client that waits; its packets in process are settled when they are done."""
        if self.gate.holds(client):
            self.gate.settle(client, now_s)
        self.starved.pop(client, None)
        self._rationed.pop(client, None)
        self.pool.leave(client)
        if client.window is not None:
            client.window.rest(waits=False)

    # --- turns -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if `turn` would find work even without a new event."""
        return bool(
            self.gate.is_ready
            or (self.starved and not self._is_full())
            or (self.window.shared and len(self.pool) > 0 and self._free > 0)
        )

    def turn(self, now_s: float) -> None:
        """Schedule clients whose capacity was given back; call it after every slice of work."""
        if self.gate.is_ready:
            self._admit_waiting(now_s)
        window = self.window
        window.closed = self._is_full()
        if window.shared:
            self._take_turns(now_s)
        if self.starved and not window.closed:
            starved, self.starved = self.starved, {}
            for client in starved:
                client.schedule()

    @property
    def _free(self) -> int:
        window = self.window
        if window.closed or window.in_process_bytes >= window.bytes_max:
            return 0
        free = self._units_limit - window.in_process
        if window.in_process_bytes:
            # Assume packets of the present mean size; `AdmissionWindow.room` checks exactly.
            unit_bytes = window.in_process_bytes / window.in_process
            free = min(free, 1 + int((window.bytes_max - window.in_process_bytes) / unit_bytes))
        return free - window.permits

    def _take_turns(self, now_s: float) -> None:
        """Give permits to the next clients, as far as the budgets allow."""
        window = self.window
        while (free := self._free) > 0:
            client = self.pool.next(now_s)
            if client is None:
                break
            least = max(1, self._units_limit // TURNS_AT_ONCE)
            permits = min(window.limit, free, max(least, free // (len(self.pool) + 1)))
            assert client.window is not None
            client.window.permit(permits)
            client.schedule()
        if not self.pool and self._free > 0 and self.grant.window >= 1:
            window.shared = False
            self.pool.forget()

    # --- the law -----------------------------------------------------------------------------

    def observe_memory(self, held_bytes: int, resident_bytes: int = 0) -> None:
        """Observe the memory that the node counts, and the resident memory of the process.

        The second counts only if it is above the limit for uncounted reasons. Otherwise memory that
        an allocator keeps for the next crowd would look like a crowd. `stuck_bytes` are left out:
        rejecting clients does not free them.
        """
        movable_bytes = resident_bytes - self.stuck_bytes
        unknown_share = movable_bytes / self._memory_limit_bytes - RESIDENT_SHARE_MAX
        self._connect_room_bytes = max(
            0.0, self._memory_objective * self._memory_limit_bytes - held_bytes
        )
        self.observer.memory(
            max(held_bytes / self._memory_limit_bytes, unknown_share + self._memory_objective),
            self.window.in_process_bytes / self._bytes_max,
        )

    def tick(self, now_s: float, heard_s: float | None = None) -> None:
        """Every 100 ms: reject late CONNECTs, and let the policy decide by the observations.

        All clients that gave up before `heard_s` are known to have left. If it is None, `now_s`
        takes its place.
        """
        self._heard_s = heard_s
        self._admit_waiting(now_s)
        window = self.window
        window.used_max = 0
        before = self.grant
        sample = self.observer.take(
            now_s,
            window.in_process,
            window.active,
            self.gate.held_bytes / self._memory_limit_bytes,
            self._connect_room_bytes,
            window.work,
            window.movable_work,
        )
        window.work = window.movable_work = 0.0
        grant = self.grant = self.policy.tick(sample)
        if grant.is_cut:
            self.observer.restart(now_s)
        if grant.window != before.window:
            self.decisions.append((now_s, grant))
        if grant.window < 1:
            # Not even one packet for each client: as many as the grant allows have one each.
            share = min(float(window.units_max), grant.window * sample.clients_active)
            self._units_limit = self._whole(share)
            window.resize(1)
            window.shared = True
        else:
            self._units_limit = window.units_max
            window.resize(self._whole(grant.window))
        window.credits = grant.credits
        window.credits_round += 1
        rationed, self._rationed = self._rationed, {}
        for client in rationed:
            client.schedule()

    def _whole(self, places: float) -> int:
        """Return a whole number of at least 1. A remainder is carried over: 1.5 becomes 1 and 2 by
        turns, so that the average is as granted."""
        self._carry += places
        whole = max(1, int(self._carry + ROUNDING))
        self._carry = max(0.0, self._carry - whole)
        return whole
