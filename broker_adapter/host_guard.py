"""HostGuard: overload protection for a host of your own; five calls, no thread and no loop.

The host reports events, and gets the guard's decision:

| event | the host calls | result |
|---|---|---|
| a CONNECT came | `offer`; `answered` after its answer | an `Admission`, or later a call of
`decided` |
| a packet starts | `start` | a `GuardedPacket`: admitted, waiting or rejected |
| a packet is done or cancelled | `done` | none; a waiting packet may be admitted |
| a client disconnected | `gone` | none; its waiting packets are dropped |
| time passed | `tick`, every 100 ms | none; windows adapt, expired packets are rejected |

It uses `flowguard.flow.Guard`, like the broker itself, and adds three things. A lock allows the
five calls from any thread. A bounded queue of packets for each client means that a client without
capacity need not ask again. The pressure follows from the calls alone: from the delay of ticks, and
from the time that packets are in process.

Callbacks run after the lock is released, in the thread whose call freed the capacity. They may call
the guard, and must not raise. `on_reject` and `on_window` only observe, and may raise: that is
logged.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from secrets import SystemRandom
from threading import Lock
from typing import Final, Literal, final

from broker_adapter.observing import observed
from flowguard.config import MIB, FlowSettings
from flowguard.flow import Admission, AdmissionWindow, Arrival, Grant, Guard, Pause, Reason, Verdict
from flowguard.flow.budget import FairBudget
from flowguard.flow.load.signals import TICK_S
from flowguard.flow.verdict import ADMITTED, WAITS

MEMORY_BYTES: Final = 1024 * MIB
"""Default memory limit; a quarter of it is the budget of packets in process."""
WAITING_BYTES: Final = 4_096
"""Memory of a waiting packet besides its size, mostly of the task that waits for it."""
LATE_MAX: Final = 1_000
"""Maximum number of packets rejected per tick after their timeout, because each needs a callback
under the lock."""
RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 60.0
RATE_SHARE: Final = 0.1
"""Weight of one tick in the moving average of the rate."""
LEFT: Final = Admission(Verdict.DROP)
"""The client has disconnected, or cancelled the packet."""


@final
class GuardedPacket:
    """One piece of work, from its offer on; `HostGuard.done` ends it in any state."""

    __slots__ = ("admission", "client", "cost", "pause", "since_s", "size_bytes", "told")

    def __init__(
        self,
        client: "GuardedClient",
        cost: int,
        size_bytes: int,
        since_s: float,
    ) -> None:
        self.client = client
        self.cost = cost
        self.size_bytes = size_bytes
        self.since_s = since_s
        """Time of the offer; from its admission on, time of the admission."""
        self.told: Told | None = None
        self.admission = WAITS
        self.pause: Pause | None = None
        """Why it had to wait (then `told` is called with the outcome), or None if it did not
        wait."""


Told = Callable[[GuardedPacket], None]
"""Called when a waiting packet is admitted or rejected: see its `admission`."""
Decided = Callable[[Admission], None]
"""Called with the outcome of a CONNECT that waited."""
Call = Callable[[], None]
Kind = Literal["connect", "packet"]


@final
class GuardedClient:
    """One client or principal of a host, with its own window. Made by `HostGuard.client`."""

    __slots__ = (
        "client_id",
        "decided",
        "runnable",
        "tenant",
        "waiting",
        "waiting_bytes",
        "window",
    )

    def __init__(
        self,
        client_id: str,
        tenant: str,
        window: AdmissionWindow,
        runnable: "dict[GuardedClient, None]",
    ) -> None:
        self.client_id = client_id
        self.tenant = tenant
        self.window = window
        self.waiting: deque[GuardedPacket] = deque()
        """Packets without capacity, in order of arrival."""
        self.decided: Decided | None = None
        """Callback while its CONNECT waits."""
        self.waiting_bytes = 0
        """Memory of its waiting packets."""
        self.runnable = runnable

    def schedule(self) -> None:
        """Note that it may have capacity now (`flowguard.flow.guard.Guarded`)."""
        self.runnable[self] = None


OnReject = Callable[[GuardedClient, Kind, Admission], None]
"""Called for each rejected CONNECT and packet, with reason and `retry_after_s`."""
OnWindow = Callable[[Grant], None]
"""Called when a tick has changed the window in force."""


@final
class HostGuard:
    """The guard of a host. `now_s`: seconds of any monotonic clock, the same one in all calls.

    A client may have `settings.window_max` packets in process, and `waiting_max` packets that wait
    for capacity, each for `patience_s` at most. Further packets are rejected with a retry-after
    hint. The waiting packets of all clients may take `settings.unfinished_bytes_max`, with
    `WAITING_BYTES` for each besides its size. From three quarters of it on, clients that hold less
    of it go first. `settings.store_objective_s` is the objective for the time that a packet is in
    process.

    A wrong argument raises ValueError, and nothing is changed.
    """

    def __init__(
        self,
        settings: FlowSettings | None = None,
        *,
        waiting_max: int = 100,
        patience_s: float | None = None,
        draw: Callable[[], float] | None = None,
        on_reject: OnReject | None = None,
        on_window: OnWindow | None = None,
    ) -> None:
        """`patience_s`: by default the timeout of CONNECTs; `draw`: random in [0, 1)."""
        settings = settings or FlowSettings()
        memory_bytes = settings.memory_max_bytes or MEMORY_BYTES
        if settings.unfinished_bytes_max is None:
            settings = settings.model_copy(update={"unfinished_bytes_max": memory_bytes // 4})
        assert settings.unfinished_bytes_max is not None
        self._draw = draw or SystemRandom().random
        self._guard: Guard[GuardedClient] = Guard(
            settings, memory_bytes, self._on_decided, draw=self._draw
        )
        self._node = self._guard.window
        self._lock = Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._waiting_max = waiting_max
        self._patience_s = settings.connect_patience_s if patience_s is None else patience_s
        self._in_process: dict[GuardedPacket, bool | None] = {}
        """Packets in process, oldest first."""
        self._waiting: OrderedDict[GuardedPacket, None] = OrderedDict()
        """Waiting packets of all clients, oldest first."""
        self._waiting_clients: dict[GuardedClient, None] = {}
        """Clients with a waiting packet."""
        self._waiting_budget = FairBudget(settings.unfinished_bytes_max)
        self._runnable: dict[GuardedClient, None] = {}
        self._on_reject = observed("on_reject", on_reject)
        self._on_window = observed("on_window", on_window)
        self._calls: list[Call] = []
        """Callbacks to be called when the lock is released."""
        self._ticked_s: float | None = None
        self._finished = 0
        self._response_sum_s = 0.0
        self._rate_per_s = 0.0
        self.refused: dict[Reason, int] = {}
        """Packets rejected since the start; for CONNECTs see `connects_refused`."""

    # --- what can be seen --------------------------------------------------------------------

    @property
    def grant(self) -> Grant:
        """The window in force, the pressure that led to it and its cause."""
        return self._guard.grant

    @property
    def in_process(self) -> int:
        """Packets admitted and not done, cost units."""
        return self._node.in_process

    @property
    def in_process_bytes(self) -> int:
        """Size of these packets, bytes."""
        return self._node.in_process_bytes

    @property
    def waiting_count(self) -> int:
        """Packets that wait for capacity."""
        return len(self._waiting)

    @property
    def connects_in_process(self) -> int:
        """CONNECTs admitted and not answered."""
        return self._guard.gate.in_process

    @property
    def connects_waiting(self) -> int:
        """CONNECTs that wait for a slot or for their rejection."""
        return self._guard.gate.buffered

    @property
    def connects_refused(self) -> dict[Reason, int]:
        """CONNECTs rejected and dropped since the start, by reason."""
        return self._guard.gate.refused

    # --- clients -----------------------------------------------------------------------------

    def client(self, client_id: str = "", tenant: str = "") -> GuardedClient:
        """Return a new client. `client_id`: a second CONNECT of a client with this id supersedes
        the first, unless it is ""; `tenant`: the group whose clients take turns as one."""
        return GuardedClient(client_id, tenant, AdmissionWindow(self._node), self._runnable)

    def offer(
        self,
        client: GuardedClient,
        now_s: float,
        *,
        size_bytes: int = 0,
        decided: Decided | None = None,
    ) -> Admission:
        """Offer a CONNECT. Call `answered` or `gone` for each admitted one in the end.

        If it has to wait (`Verdict.DELAY`), `decided` is called once with the outcome. A client may
        have one CONNECT at a time.
        """
        if size_bytes < 0:
            raise ValueError(f"size_bytes: 0 or more, not {size_bytes}")
        with self._lock:
            if self._guard.gate.holds(client):
                raise ValueError("this client has a CONNECT that is not over: end it by `answered`")
            arrival = Arrival(client.client_id, size_bytes)
            admission = self._guard.offer(client, arrival, now_s)
            if admission.verdict is Verdict.DELAY:
                client.decided = decided
            self._observed(client, "connect", admission, now_s)
            calls = self._settle(now_s)
        _call(calls)
        return admission

    def answered(self, client: GuardedClient, now_s: float) -> None:
        """End a client's CONNECT, answered or cancelled, and free its slot. Safe to repeat."""
        with self._lock:
            self._guard.answered(client, now_s)
            self._on_decided(client, LEFT, now_s)
            calls = self._settle(now_s)
        _call(calls)

    def gone(self, client: GuardedClient, now_s: float) -> None:
        """Remove a disconnected client. Waiting packets are dropped, with a call of `told`; packets
        in process count until they are `done`."""
        with self._lock:
            while client.waiting:
                self._forget(client.waiting.popleft(), LEFT)
            self._guard.gone(client, now_s)
            self._runnable.pop(client, None)
            self._on_decided(client, LEFT, now_s)
            calls = self._settle(now_s)
        _call(calls)

    # --- packets -----------------------------------------------------------------------------

    def start(
        self,
        client: GuardedClient,
        now_s: float,
        *,
        cost: int = 1,
        size_bytes: int = 0,
        told: Told | None = None,
    ) -> GuardedPacket:
        """Offer a packet; its `admission` is the decision with its reason.

        If it has to wait, its `pause` is set, and `told` is called when it is admitted or rejected.
        To cancel the wait, call `done`. In all other cases `told` is not called.
        """
        if cost < 1 or size_bytes < 0:
            raise ValueError(f"cost: 1 or more; size_bytes: 0 or more; not {cost} and {size_bytes}")
        packet = GuardedPacket(client, cost, size_bytes, now_s)
        self._acquire()  # A third of what `with` costs.
        try:
            window = client.window
            if not client.waiting and window.room() and (cost == 1 or window.fits(cost)):
                window.admit(cost, size_bytes)
                packet.admission = ADMITTED
                self._in_process[packet] = None
                if self._node.credits is not None:
                    window.spend(1)
                return packet
            self._wait(packet, now_s)
            calls = self._settle(now_s)
            if packet.admission is WAITS:
                packet.told = told
            else:
                packet.pause = None
        finally:
            self._release()
        _call(calls)
        return packet

    def done(self, packet: GuardedPacket, now_s: float) -> None:
        """End a packet, done or cancelled, and release what it holds. Safe to repeat."""
        self._acquire()
        try:
            client = packet.client
            if self._in_process.pop(packet, False) is None:
                client.window.worked(packet.cost)
                client.window.settle(packet.cost, packet.size_bytes)
                self._finished += 1
                self._response_sum_s += now_s - packet.since_s
            elif packet in self._waiting:
                client.waiting.remove(packet)
                packet.told = None
                self._forget(packet, LEFT)
            if client.waiting:
                self._runnable[client] = None
            elif not self._waiting:
                return
            calls = self._settle(now_s)
        finally:
            self._release()
        _call(calls)

    # --- time --------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Every 100 ms: adapt windows to the pressure, and reject packets that waited too long."""
        with self._lock:
            self._observe(now_s)
            limit, window = self._node.limit, self.grant.window
            self._guard.tick(now_s)
            if self._on_window is not None and self.grant.window != window:
                self._calls.append(partial(self._on_window, now_s, self.grant))
            if self._node.limit > limit:
                # Clients that wait for their own packets, which may take long, get capacity only
                # now.
                self._runnable.update(self._waiting_clients)
            for _ in range(LATE_MAX):
                packet = next(iter(self._waiting), None)
                if packet is None or now_s - packet.since_s < self._patience_s:
                    break
                # The oldest of all waiting packets is also the oldest of its client.
                packet.client.waiting.popleft()
                self._forget(packet, self._refusal(Reason.GATE_DEADLINE))
                self._observed(packet.client, "packet", packet.admission, now_s)
            calls = self._settle(now_s)
        _call(calls)

    def rest(self) -> None:
        """Pause the ticks: the next tick is not late, whenever it comes."""
        with self._lock:
            self._ticked_s = None

    def _observe(self, now_s: float) -> None:
        observer, finished = self._guard.observer, self._finished
        elapsed_s = TICK_S
        if self._ticked_s is not None:
            elapsed_s = now_s - self._ticked_s
            observer.drift(max(0.0, elapsed_s - TICK_S), now_s)
        self._ticked_s = now_s
        if finished:
            observer.finished(finished, self._response_sum_s)
            observer.committed(self._response_sum_s / finished, now_s)
        if self._in_process:
            observer.committing(now_s - next(iter(self._in_process)).since_s)
        if elapsed_s > 0:
            self._rate_per_s += RATE_SHARE * (finished / elapsed_s - self._rate_per_s)
        self._finished = 0
        self._response_sum_s = 0.0
        waiting_bytes = self._waiting_budget.used_bytes
        self._guard.observe_memory(self._node.in_process_bytes + waiting_bytes)

    # --- inside the lock ---------------------------------------------------------------------

    def _wait(self, packet: GuardedPacket, now_s: float) -> None:
        client, budget = packet.client, self._waiting_budget
        size_bytes = WAITING_BYTES + packet.size_bytes
        packet.pause = Pause.WINDOW if client.waiting else client.window.pause()
        if len(client.waiting) >= self._waiting_max:
            packet.admission = self._refusal(Reason.QUEUE_MESSAGES)
        elif self._waiting and not budget.fits(size_bytes, client.waiting_bytes):
            packet.admission = self._refusal(Reason.NODE_QUEUE_BYTES)
        else:
            budget.hold(size_bytes, client.waiting_bytes)
            client.waiting_bytes += size_bytes
            client.waiting.append(packet)
            self._waiting[packet] = None
            self._waiting_clients[client] = None
            self._runnable[client] = None
            return
        self._observed(client, "packet", packet.admission, now_s)

    def _observed(
        self, client: GuardedClient, kind: Kind, admission: Admission, now_s: float
    ) -> None:
        """Report a rejection to the host."""
        if self._on_reject is not None and admission.verdict is Verdict.REJECT:
            self._calls.append(partial(self._on_reject, now_s, client, kind, admission))

    def _refusal(self, reason: Reason) -> Admission:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        count = len(self._waiting) + len(self._in_process)
        wait_s = count / self._rate_per_s if self._rate_per_s > 0 else self._patience_s
        retry_after_s = min(RETRY_MAX_S, max(RETRY_MIN_S, wait_s * (0.5 + self._draw())))
        return Admission(Verdict.REJECT, reason, retry_after_s)

    def _forget(self, packet: GuardedPacket, admission: Admission) -> None:
        """End the wait of a packet that was taken from its client's queue."""
        client, size_bytes = packet.client, WAITING_BYTES + packet.size_bytes
        del self._waiting[packet]
        if not client.waiting:
            del self._waiting_clients[client]
        client.waiting_bytes -= size_bytes
        self._waiting_budget.give_back(size_bytes, client.waiting_bytes)
        if admission is not ADMITTED:
            client.window.needs = 1  # The cost of the next packet is not known before it is asked.
        packet.admission = admission
        self._runnable[client] = None
        if packet.told is not None:
            self._calls.append(partial(packet.told, packet))

    def _on_decided(self, client: GuardedClient, admission: Admission, now_s: float) -> None:
        decided, client.decided = client.decided, None
        if decided is not None:
            self._calls.append(partial(decided, admission))
        self._observed(client, "connect", admission, now_s)

    def _run(self, client: GuardedClient, now_s: float) -> None:
        """Admit waiting packets while there is capacity."""
        window, waiting = client.window, client.waiting
        while waiting and window.room() and window.fits(waiting[0].cost):
            packet = waiting.popleft()
            window.admit(packet.cost, packet.size_bytes)
            if self._node.credits is not None:
                window.spend(1)
            self._forget(packet, ADMITTED)
            packet.since_s = now_s
            self._in_process[packet] = None
        window.rest(bool(waiting))
        if waiting:
            self._guard.paused(client, now_s)

    def _settle(self, now_s: float) -> "list[Call]":
        """Admit until no waiting packet has capacity; return the callbacks to call without the
        lock."""
        guard, runnable = self._guard, self._runnable
        while runnable or guard.has_work:
            if not runnable:
                guard.turn(now_s)
            clients = list(runnable)
            for client in clients:
                self._run(client, now_s)
                runnable.pop(client, None)
        calls, self._calls = self._calls, []
        return calls


def _call(calls: list[Call]) -> None:
    for call in calls:
        call()
