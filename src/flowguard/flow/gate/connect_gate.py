"""ConnectGate: the limit on CONNECTs in process, and the queue of the excess.

The limit follows the time that a CONNECT takes (`flow/concurrency`). The queue has bounds on
entries, bytes, memory and time (`flow/waiting`): a client that has given up is not worth serving.
docs/explain/overload.md, "CONNECT", has the rules and their reasons.

Every CONNECT gets exactly one outcome, and none after its connection has ended. With a free slot
and an empty queue the outcome is ADMIT, unless memory is short (invariants 10 and 11).
"""

from math import inf
from typing import Any, Final, Generic, TypeVar, final

from flowguard.config import FlowSettings
from flowguard.flow.controller import GROW_BELOW
from flowguard.flow.gate.concurrency import ConcurrencyLimit
from flowguard.flow.gate.patience import Patience
from flowguard.flow.gate.refusals import Outlook, RefusalBudget
from flowguard.flow.gate.waiting import WaitingRoom
from flowguard.flow.load.pressure import slots_pressure_of
from flowguard.flow.load.signals import TICK_S, Pressure, Sample, Signal
from flowguard.flow.policy import Arrival, Rung
from flowguard.flow.verdict import Reason, Verdict

K = TypeVar("K")
WAIT_SHARE: Final = 0.25
"""Weight of a second of waiting for a slot; a second in process has weight 1."""
WAIT_PRESSURE_MAX: Final = 2.0
"""Pressure of a crowd, however long it waits: windows are cut mildly."""
OVERDUE_SHARE: Final = 0.5
"""Share of its patience that a client may wait in the listen backlog while the gate is full."""
DRIFTS: Final = 2.0
"""Drifts of the loop in the measured time of a commit: at its begin and at its end."""
STORE_SHARE: Final = 0.25
"""Share of its patience that a CONNECT may spend in a slow store at its best recent rate."""
LATE_SHARE: Final = 0.5
"""Share of its patience that a CONNECT may spend behind the claims of clients that left."""
FULL_ABOVE: Final = 4.0
"""Pressure of memory above which every CONNECT is rejected."""
UNDER_WAY: Final = 128
"""Maximum number of sockets that are accepted before the gate sees their CONNECTs."""


@final
class ConnectGate(Generic[K]):
    """Flowguard's `Gate` (flow/policy); one per node. Time must not run backwards."""

    __slots__ = (
        "_budget",
        "_concurrency",
        "_held_bytes_max",
        "_in_process",
        "_is_calm",
        "_is_full",
        "_let_in_count",
        "_newest_bytes",
        "_outlook",
        "_outside_s",
        "_patience",
        "_spent_s",
        "_ticked_s",
        "_waiting",
        "_went_in_bytes",
        "cuts",
        "reason",
        "refused",
    )

    def __init__(self, settings: FlowSettings) -> None:
        self._concurrency = ConcurrencyLimit(
            settings.connects_in_process_max, settings.connect_objective_s
        )
        self._waiting: WaitingRoom[K] = WaitingRoom(
            entries_max=settings.connect_buffer_max,
            bytes_max=settings.connect_buffer_bytes_max,
            patience_s=settings.connect_patience_s,
        )
        self._outlook = Outlook(settings.connect_patience_s)
        self._patience = Patience(settings.connect_patience_s)
        self._budget = RefusalBudget(settings.refusal_share)
        self._spent_s = 0.0
        """Seconds of the loop for accepting and rejecting, since the last tick."""
        self._ticked_s = -inf
        self._is_calm = True
        self._is_full = False
        self._held_bytes_max = inf
        """Memory that waiting CONNECTs may hold until the next tick."""
        self._newest_bytes = 0
        """Memory that the newest CONNECT holds."""
        self._let_in_count = 0
        """Sockets since the last tick that had not waited for long, less those that got places."""
        self._outside_s = 0.0
        """How long the newest socket had waited in the listen backlog; 0 if none waits."""
        self._in_process: dict[K, tuple[float, int]] = {}
        """The time of admission, seconds, and the memory that the CONNECT holds."""
        self._went_in_bytes = 0
        """Memory that CONNECTs in process hold beyond what they held at the last tick."""
        self.cuts = self._concurrency.cuts
        self.refused: dict[Reason, int] = {}
        self.reason: Reason | None = None
        """Why the last of them was rejected or dropped."""

    @property
    def limit(self) -> int:
        return self._concurrency.limit

    @property
    def in_process(self) -> int:
        """CONNECTs admitted and not yet settled; above a limit that shrank until they are done."""
        return len(self._in_process)

    @property
    def buffered(self) -> int:
        """CONNECTs waiting for a place, or too late for one and not answered yet."""
        return len(self._waiting)

    @property
    def buffered_bytes(self) -> int:
        return self._waiting.size_bytes

    @property
    def held_bytes(self) -> int:
        """Memory of the CONNECTs that wait, their connections included."""
        return self._waiting.held_bytes

    @property
    def rung(self) -> Rung:
        """Always the lowest: connections beyond the budget stay in the listen backlog."""
        return Rung.BUFFER

    @property
    def completion_rate(self) -> float:
        """CONNECTs done per second while others waited, lately; 0: unknown."""
        return self._outlook.completion_rate

    @property
    def late_claims_max(self) -> float:
        """As many as the store commits in half of the time that clients wait, at the best recent
        rate, so that the next clients are still there after that commit; 0 if it is unknown."""
        return self._outlook.completed_in(LATE_SHARE * self._waiting.patience_s)

    @property
    def crowd_pressure(self) -> float:
        """Pressure of a crowd on windows: a share of its longest wait, by the objective."""
        waited_s = self._ticked_s - self._waiting.oldest_s
        if waited_s <= 0.0:
            return 0.0
        return min(WAIT_PRESSURE_MAX, WAIT_SHARE * waited_s / self._concurrency.objective_s)

    @property
    def spent_s(self) -> float:
        """Seconds of the loop that accepting and rejecting took since the last tick."""
        return self._spent_s

    @property
    def is_ready(self) -> bool:
        """True if `admit_next` would return a CONNECT. Late ones are left to the next tick."""
        waiting = self._waiting
        return waiting.has_superseded or (waiting.hopeful > 0 and self._has_place)

    def holds(self, key: K) -> bool:
        return key in self._in_process or key in self._waiting

    def offer(self, key: K, arrival: Arrival, now_s: float) -> Verdict:
        """A CONNECT arrived: ADMIT (settle it later), DELAY or REJECT."""
        assert key not in self._in_process
        assert key not in self._waiting
        self._advance(now_s)
        waiting = self._waiting
        held_bytes = arrival.size_bytes + arrival.held_bytes
        waiting.supersede(arrival.client_id)
        if self._is_full:
            return self._reject(Reason.GATE_MEMORY)
        if self._has_place and not waiting.hopeful:
            self._admit(key, held_bytes, now_s)
            return Verdict.ADMIT
        reason = waiting.why_not(arrival.size_bytes)
        self._newest_bytes = held_bytes
        is_first = self._is_calm and not len(waiting)
        more_bytes = self._went_in_bytes + held_bytes
        if not is_first and waiting.held_bytes + more_bytes > self._held_bytes_max:
            reason = Reason.GATE_MEMORY
        since_s = now_s if self._is_next else now_s - arrival.waited_s
        if reason is None and now_s - since_s >= waiting.patience_s:
            self._outlook.was_late()
            reason = Reason.GATE_DEADLINE
        if reason is None and self._outlook.is_too_long(waiting.hopeful, now_s - since_s):
            reason = Reason.GATE_WAIT
        if reason is not None:
            return self._reject(reason)
        waiting.add(key, arrival, since_s, now_s - arrival.waited_s)
        return Verdict.DELAY

    def settle(self, key: K, now_s: float) -> None:
        """Free the slot of a CONNECT after its answer, or after the end of its connection.

        Safe to repeat: an end and an answer may both report.
        """
        self._advance(now_s)
        admitted = self._in_process.pop(key, None)
        if admitted is None:
            came_s = self._waiting.leave(key)
            if came_s is not None:
                self._patience.gave_up(now_s - came_s, now_s)
            return
        admitted_s, held_bytes = admitted
        self._went_in_bytes -= held_bytes
        self._concurrency.settled(admitted_s, now_s)
        if self._waiting.hopeful:
            self._outlook.completed()

    def admit_next(self, now_s: float, heard_s: float | None = None) -> tuple[K, Verdict] | None:
        """Take a waiting CONNECT: DROP if superseded, REJECT if late, ADMIT if there is a place.

        Late ones are answered as far as the budget for rejecting allows: report the time with
        `spent` before the next call. `heard_s`: see `Gate`.
        """
        self._advance(now_s)
        waiting = self._waiting
        key = waiting.take_superseded()
        if key is not None:
            self._count(Reason.GATE_SUPERSEDED)
            return key, Verdict.DROP
        waiting.expire(now_s if heard_s is None else heard_s)
        if self._budget.allows(now_s):
            key = waiting.take_late()
            if key is not None:
                self._outlook.was_late()
                return key, self._reject(Reason.GATE_DEADLINE)
        if self._has_place:
            held_bytes = waiting.held_bytes
            key = waiting.take_next()
            if key is not None:
                self._admit(key, held_bytes - waiting.held_bytes, now_s)
                return key, Verdict.ADMIT
        return None

    def abandon_next(self) -> K | None:
        """A waiting CONNECT, taken out to be refused because the node drains; the late first."""
        key = self._waiting.take_any()
        if key is not None:
            self._count(Reason.DRAINING)
        return key

    def tick(self, sample: Sample, pressure: Pressure) -> None:
        """Every `TICK_S`: adapt the limit to what the node has observed."""
        now_s = sample.now_s
        self._advance(now_s)
        self._is_calm = pressure.value < GROW_BELOW
        self._is_full = pressure.cause is Signal.MEMORY and pressure.value > FULL_ABOVE
        self._held_bytes_max = self._waiting.held_bytes + sample.connect_room_bytes
        self._went_in_bytes = 0
        self._watch_loop(sample)
        self._let_in_count = 0
        if not len(self._waiting):
            self._outside_s = 0.0
        in_process = len(self._in_process)
        commit_s = sample.commit_s - DRIFTS * sample.drift_s
        if commit_s > self._concurrency.objective_s:
            useful = self._outlook.completed_in(STORE_SHARE * self._waiting.patience_s)
            self._concurrency.store_stands(min(in_process + self._waiting.hopeful, useful or inf))
        else:
            on_slots = slots_pressure_of(pressure)
            self._concurrency.tick(now_s, on_slots, in_process, sample.response_s)
        self._patience.tick(now_s)
        self._waiting.patience_s = self._outlook.patience_s = self._patience.limit_s

    def peer_lost(self, now_s: float) -> None:
        """Restart the limit at 4: clients of a lost node of the cluster will come."""
        self._concurrency.restart(now_s)

    def retry_after_s(self, draw: float) -> float:
        """Retry-after delay of a rejected client, seconds; `draw` in [0, 1) is its jitter."""
        return self._outlook.retry_after_s(draw, self._waiting.hopeful, self._outside_s)

    def may_accept(self, now_s: float) -> bool:
        """Whether new sockets may be accepted: memory, and the budget for rejecting."""
        if self._is_crammed:
            # The wait of the first socket is an estimate for all others in the listen backlog.
            slots = 1 if self._waiting.hopeful else self.limit
            if self._let_in_count >= slots:
                return False
        return not self._has_budget or self._budget.allows(now_s)

    def let_in(self, waited_s: float) -> None:
        """A socket was accepted after `waited_s` in the listen backlog.

        While memory is short, a few per tick come in, and all that have waited for long.
        """
        self._outside_s = waited_s
        if waited_s < OVERDUE_SHARE * self._waiting.patience_s:
            self._let_in_count += 1

    def closes(self, now_s: float) -> bool:
        """Never: connections that cannot be answered now stay in the listen backlog."""
        return False

    def spent(self, cost_s: float, now_s: float) -> None:
        """Accepting and rejecting took `cost_s` seconds of the loop."""
        self._spent_s += cost_s
        if self._has_budget:
            self._budget.spend(cost_s, now_s)

    @property
    def _has_budget(self) -> bool:
        """Whether accepting and rejecting have a budget: CONNECTs wait, or all are rejected."""
        return self._is_full or len(self._waiting) > 0

    @property
    def _is_crammed(self) -> bool:
        """True if there is no memory for the CONNECTs that may be under way."""
        held_bytes = self._waiting.held_bytes + UNDER_WAY * self._newest_bytes
        return held_bytes >= self._held_bytes_max

    @property
    def _is_next(self) -> bool:
        """True if a CONNECT that comes now will get a place by the next tick.

        It is in time, however long it was in the listen backlog: else places would stay free.
        """
        served = TICK_S * self._outlook.completion_rate
        return self._waiting.hopeful < max(self.limit, served)

    @property
    def _has_place(self) -> bool:
        return len(self._in_process) < self._concurrency.limit

    def _advance(self, now_s: float) -> None:
        self._outlook.advance(now_s, crowded=self._waiting.hopeful > 0)

    def _watch_loop(self, sample: Sample) -> None:
        """Report the loop's share of messages to the budget for rejecting."""
        budget, elapsed_s = self._budget, sample.now_s - self._ticked_s
        budget.running_share = sample.running_share
        aside_s = sample.connecting_s + self._spent_s + sample.handshakes_s
        self._ticked_s = sample.now_s
        self._spent_s = 0.0
        if 0.0 < elapsed_s < inf:
            budget.observe(max(0.0, sample.worked_s - aside_s) / elapsed_s, elapsed_s)

    def _admit(self, key: K, held_bytes: int, now_s: float) -> None:
        self._in_process[key] = now_s, held_bytes
        self._went_in_bytes += held_bytes
        if self._let_in_count:
            self._let_in_count -= 1  # This CONNECT may be that of an accepted socket.
        self._concurrency.admitted(len(self._in_process))

    def _reject(self, reason: Reason) -> Verdict:
        self._count(reason)
        self._outlook.refused()
        return Verdict.REJECT

    def _count(self, reason: Reason) -> None:
        self.reason = reason
        self.refused[reason] = self.refused.get(reason, 0) + 1


def use_limits(gate: ConnectGate[Any], settings: FlowSettings) -> None:
    """Let a gate use other limits from now on."""
    gate._concurrency.bound(settings.connects_in_process_max, settings.connect_objective_s)
    gate._waiting.bound(settings.connect_buffer_max, settings.connect_buffer_bytes_max)
    gate._patience.use(settings.connect_patience_s)
    gate._budget.use(settings.refusal_share)
