"""Guard: the one door to a broker. What is worked on has passed it; what has not waits outside.

It knows no packet, no socket, no journal and no clock, so any broker can stand behind it: clients
are the host's own objects, sizes and times are arguments. Five things happen to a host, and it
tells the guard of each:

| what happens | the host calls | and gets |
|---|---|---|
| a CONNECT has come | `offer`; `answered` after its CONNACK | an `Admission`; or later, `decided` |
| a packet starts | `room`, `admit` of its client's window | room; if there is none: `paused` |
| a packet is done | `settle` of the same window | `schedule` of whoever has room now |
| a client is gone | `gone`, whatever it had or wanted | nothing is held for it any more |
| time has passed | `tick` every 100 ms, `turn` after a slice | new limits; whose turn it is |

The window is the guard's half of one client, `AdmissionWindow(guard.window)`: a packet is started
and ended by a few additions, and by no call through here.

Who is asked, in this order; whoever says no is the cause:

    CONNECT ─▶ Gate: is a place free? ─▶ WaitingRoom: entries, bytes, patience? ─▶ it is refused
    packet ──▶ AdmissionWindow: is its client below the limit? no: it waits for its own packets
             ▶ NodeWindow: is the host open? no: its client stands among the starved
             ▶ NodeWindow: are the budgets of all clients spent? yes: FairPool, for a turn
             ▶ AdmissionWindow: has it credits, where a policy limits a rate? no: the next tick

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
from flowguard.flow.adaptive import Tell, tell_nobody
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
"""So many clients share what may be in process, at most: what a client sent at once stays together
on its way, and costs one system call, not one for each packet."""
RESIDENT_SHARE_MAX: Final = 1.1
"""Of the memory limit: more than that is pressure, whatever is counted."""
CONNECTS_MIN_S: Final = 0.000_5
"""Time that waiting CONNECTs may take of the loop in a turn, however little other work took."""
REFUSAL_S: Final = 0.000_1
"""What decoding and refusing a CONNECT takes of the loop at least: no clock here, seconds."""


class Guarded(Protocol):
    """A client, as far as the guard has to know it; hashable by identity."""

    @property
    def tenant(self) -> str:
        """The one whose share it takes while clients take turns; fixed once it is connected."""

    @property
    def window(self) -> AdmissionWindow | None:
        """Its half of the door; None: it is no client yet, or any more."""

    def schedule(self) -> None:
        """Be run again in the next turn: there may be room now."""


C = TypeVar("C", bound=Guarded)


def never() -> bool:
    """For a host whose own queue has no end."""
    return False


@final
class Guard(Generic[C]):
    """One per node; `settings.policy` decides.

    `settings.shadow_policy` watches, under the limits of `shadow` where they are given; limits
    alone: their own policy does, which is the same unless they name another one.
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
        """`decided(client, admission, now_s)` is told what becomes of a CONNECT that had to wait.

        It is called from `turn` and `tick`, once per CONNECT, and must not raise. `draw`: uniform
        in [0, 1), so that the refused do not come back together. `is_full`: whether the host takes
        nothing now, from nobody; it may close `window` itself as soon as it knows.

        `cluster`: the other nodes, and the function that sends them a record.
        """
        policy: Policy[C] = make_policy(
            settings.policy, settings, *(cluster or (None, tell_nobody))
        )
        self.shadow: Shadow[C] | None = None
        self.shadow_settings = settings if shadow is None else shadow
        """Of the shadow, if there is one."""
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
        """When, and what: one entry per change of the window."""
        self._carry = 0.0
        self._connect_room_bytes = inf
        self.stuck_bytes = 0
        """Resident memory above the limit that stays although hardly any connection is left."""
        self.starved: dict[C, None] = {}
        """Who waits because the host takes nothing at all."""
        self._rationed: dict[C, None] = {}
        """Who has spent its credits of this round (`Grant.credits`)."""
        self.refused_count = 0
        """CONNECTs told to come back, since the start."""
        self._decided = decided
        self._draw = draw
        self._is_full = is_full
        self._heard_s: float | None = None
        self._connects = TimeShare(CONNECTS_MIN_S)

    # --- CONNECTs ----------------------------------------------------------------------------

    def offer(self, client: C, arrival: Arrival, now_s: float) -> Admission:
        """A CONNECT has come: it is admitted, refused, or waits until `decided` says which.

        Who is admitted is `answered` in the end, or `gone`.
        """
        return self._admission(self.gate.offer(client, arrival, now_s), now_s)

    def refused(self, took_s: float, now_s: float, count: int = 1) -> None:
        """Book what these refusals took beyond what was booked for them already.

        Not for one of which the host tells the gate itself, with the accept before it.
        """
        if took_s > count * REFUSAL_S:
            self.gate.spent(took_s - count * REFUSAL_S, now_s)

    def answered(self, client: C, now_s: float) -> None:
        """Its CONNECT is over, or is not our work for now: its place is free. Safe to repeat."""
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
        """Let CONNECTs in, one by one, for their share of the time.

        A host that reports no time for CONNECTs lets in as many as there are slots.
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
        """It has packets and its window no room: it is remembered until there may be some.

        While clients take turns it stands with the others, closed or not: else those who do would
        fill the host's journal again before it has come so far. Who waits for a packet of its own
        is remembered by nobody: whoever settles that one knows.
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
        """Whether `turn` would find something to do, though nothing new came in."""
        return bool(
            self.gate.is_ready
            or (self.starved and not self._is_full())
            or (self.window.shared and len(self.pool) > 0 and self._free > 0)
        )

    def turn(self, now_s: float) -> None:
        """After every slice of work: whoever waited for what was given back meanwhile goes on."""
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
            # What comes is taken to be as large as what is there (`AdmissionWindow.room` is sure).
            unit_bytes = window.in_process_bytes / window.in_process
            free = min(free, 1 + int((window.bytes_max - window.in_process_bytes) / unit_bytes))
        return free - window.permits

    def _take_turns(self, now_s: float) -> None:
        """Give permits to who is next, as many as there is room for."""
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
        """Observe what the node holds by its own count, and what the process has of the system.

        The second is looked at only where it is above the limit for reasons that nobody counts:
        else what an allocator keeps for the next crowd would look like a crowd. `stuck_bytes` are
        left out: to reject clients does not free them.
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
        """Every 100 ms: who is late is refused, and the policy decides by what was observed.

        `heard_s`: whoever had given up by then is known to be gone; None: by now.
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
            # Not even a packet for everybody: so many of those that want one have one.
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
        """At least one. Nobody has half a place: 1.5 is one and two by turns, and on the average
        what was granted.
        """
        self._carry += places
        whole = max(1, int(self._carry + ROUNDING))
        self._carry = max(0.0, self._carry - whole)
        return whole
