"""Protection: the eyes and hands of a policy on one node.

Eyes: the observer, which the reactor, the journal and housekeeping report to. Hands: the window
that every client's packets are counted against, the pool in which clients take turns once all of
them together have as much in process as the node may, and the gate for CONNECTs. In between, every
100 ms, the policy. The last decisions are kept for whoever asks why.
"""

from collections import deque
from typing import Final, Generic, Protocol, TypeVar, final

from flowguard.config import FlowSettings
from flowguard.flow import (
    AdmissionWindow,
    Cluster,
    FairPool,
    Gate,
    Grant,
    NodeWindow,
    Observer,
    Policy,
    Shadow,
    Tell,
    make_policy,
    tell_nobody,
)
from flowguard.flow.policies import WITH_BUDGETS

DECISIONS_MAX: Final = 256
ROUNDING: Final = 1e-9
"""A window of 9.9999999999 after a hundred multiplications is one of 10."""
TURNS_AT_ONCE: Final = 256
"""So many clients share what may be in process, at most: what a client sent at once stays together
on its way, and costs one system call, not one for each packet."""
RESIDENT_SHARE_MAX: Final = 1.1
"""Of the memory limit: more than that is pressure, whatever is counted."""


class Windowed(Protocol):
    """Has a window."""

    @property
    def window(self) -> AdmissionWindow: ...


class Guarded(Protocol):
    """What protection has to know of a conversation; hashable by identity."""

    @property
    def tenant(self) -> str:
        """Whose share it takes while clients take turns; does not change once it is connected."""

    @property
    def inbound(self) -> Windowed | None:
        """Its window; None: it is no client yet, or any more."""

    def schedule(self) -> None:
        """Be run again in the next turn: there may be room now."""


C = TypeVar("C", bound=Guarded)


@final
class Protection(Generic[C]):
    """One per node; `settings.policy` decides.

    `settings.shadow_policy` watches, under the limits of `shadow` where they are given; limits
    alone: their own policy does, which is the same unless they name another one.
    """

    __slots__ = (
        "_bytes_max",
        "_carry",
        "_memory_limit_bytes",
        "_memory_objective",
        "_rationed",
        "_units_limit",
        "decisions",
        "gate",
        "grant",
        "observer",
        "policy",
        "pool",
        "shadow",
        "shadow_settings",
        "window",
    )

    def __init__(
        self,
        settings: FlowSettings,
        memory_limit_bytes: int,
        cluster: Cluster | None = None,
        tell: Tell = tell_nobody,
        shadow: FlowSettings | None = None,
    ) -> None:
        policy: Policy[C] = make_policy(settings.policy, settings, cluster, tell)
        self.shadow: Shadow[C] | None = None
        self.shadow_settings = settings if shadow is None else shadow
        """Of the shadow, if there is one."""
        watching = settings.shadow_policy or (None if shadow is None else shadow.policy)
        if watching is not None:
            second: Policy[int] = make_policy(watching, self.shadow_settings)
            policy = self.shadow = Shadow(policy, second)
        self.policy = policy
        self.gate: Gate[C] = policy.gate
        self.observer = Observer()
        self.pool: FairPool[C] = FairPool()
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_objective = settings.memory_objective
        assert settings.unfinished_bytes_max is not None, "`Bounds` says how many"
        self._bytes_max = settings.unfinished_bytes_max
        if settings.policy in WITH_BUDGETS:
            self.window = NodeWindow(settings.window_max, settings.unfinished_max, self._bytes_max)
        else:
            self.window = NodeWindow(settings.window_max)
        self._units_limit = self.window.units_max
        if self.shadow is not None:
            self.shadow.clients_over = self.window.over
        self.grant = Grant(float(settings.window_max))
        self.decisions: deque[tuple[float, Grant]] = deque(maxlen=DECISIONS_MAX)
        """When, and what: one entry per change of the window."""
        self._carry = 0.0
        self._rationed: dict[C, None] = {}
        """Who has spent its credits of this round (`Grant.credits`)."""

    def observe_memory(self, held_bytes: int, resident_bytes: int = 0) -> None:
        """What the node holds by its own count, and what the process has of the system.

        The second is looked at only where it is above the limit for reasons that nobody counts:
        else what an allocator keeps for the next crowd would look like a crowd.
        """
        unknown_share = resident_bytes / self._memory_limit_bytes - RESIDENT_SHARE_MAX
        self.observer.memory(
            max(held_bytes / self._memory_limit_bytes, unknown_share + self._memory_objective),
            self.window.in_process_bytes / self._bytes_max,
        )

    def tick(self, now_s: float) -> None:
        """Ask the policy, and do what it says."""
        window = self.window
        self.observer.used(window.used_max / window.limit)
        window.used_max = 0
        before = self.grant
        sample = self.observer.take(now_s, window.in_process, window.active)
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
        for connection in rationed:
            connection.schedule()

    def _whole(self, places: float) -> int:
        """At least one. Nobody has half a place: 1.5 is one and two by turns, and on the average
        what was granted.
        """
        self._carry += places
        whole = max(1, int(self._carry + ROUNDING))
        self._carry = max(0.0, self._carry - whole)
        return whole

    # --- clients that wait for the whole node ------------------------------------------------

    def paused(self, connection: C, now_s: float) -> None:
        """A client has packets and no room, though the node is not closed."""
        inbound = connection.inbound
        assert inbound is not None
        window = inbound.window
        if window.is_full:
            return  # It goes on when one of its own is done.
        if self.window.shared:
            cost = window.take_charge()
            self.pool.wait(connection, connection.tenant, 1.0, cost, now_s)
        else:
            assert self.window.credits is not None
            self._rationed[connection] = None

    def left(self, connection: C) -> None:
        """A client is gone; its packets in process are settled when their work is done."""
        self.pool.leave(connection)
        self._rationed.pop(connection, None)

    @property
    def is_ready(self) -> bool:
        """Whether somebody who waits for a turn may have one."""
        return len(self.pool) > 0 and self._free > 0

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

    def take_turns(self, now_s: float) -> None:
        """Give permits to who is next, as many as there is room for."""
        window = self.window
        while (free := self._free) > 0:
            connection = self.pool.next(now_s)
            if connection is None:
                break
            least = max(1, self._units_limit // TURNS_AT_ONCE)
            permits = min(window.limit, free, max(least, free // (len(self.pool) + 1)))
            assert connection.inbound is not None
            connection.inbound.window.permit(permits)
            connection.schedule()
        if not self.pool and self._free > 0 and self.grant.window >= 1:
            window.shared = False
            self.pool.forget()
