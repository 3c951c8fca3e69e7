"""HostGuard: overload protection for a host of your own; five calls, no thread and no loop.

The host tells what happens, and is told whether it may go on:

| what happens | the host calls | and gets |
|---|---|---|
| a CONNECT has come | `offer`; `answered` after its answer | an `Admission`; or later, `decided` |
| a packet starts | `start` | a `GuardedPacket`: admitted, or it waits, or it is refused |
| a packet is done, or given up | `done` | nothing; who waited for its place is told |
| a client is gone | `gone` | nothing is held for it any more |
| time has passed | `tick`, every 100 ms | nothing; windows move, who waited too long is refused |

It stands on `flowguard.flow.Guard`, the one door of the broker itself, and adds three things: a
lock, so that the five calls may come from any thread; a bounded queue of packets for each client,
so that who has no room need not ask again; and pressure that follows from the calls alone, which
are how late a tick comes and how long packets are in process.

Callbacks run after the lock is given back, in the thread whose call made room: they may call the
guard, and must not raise.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from secrets import SystemRandom
from threading import Lock
from typing import Final, final

from flowguard.config import MIB, FlowSettings
from flowguard.flow import Admission, AdmissionWindow, Arrival, Grant, Guard, Pause, Reason, Verdict
from flowguard.flow.budget import FairBudget
from flowguard.flow.load.signals import TICK_S
from flowguard.flow.verdict import ADMITTED, WAITS

MEMORY_BYTES: Final = 1024 * MIB
"""For packets in process, where the settings do not say: a quarter of it is their budget."""
WAITING_BYTES: Final = 4_096
"""What a packet that waits takes besides its size: whoever waits for it, most of all."""
LATE_MAX: Final = 1_000
"""Packets refused in one tick for their patience: each costs a callback, and the lock is held."""
RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 60.0
RATE_SHARE: Final = 0.1
"""Of what is known of the rate, that a tick decides."""
LEFT: Final = Admission(Verdict.DROP)
"""Its client is gone, or has given it up."""


@final
class GuardedPacket:
    """One piece of work, from the time it was offered; `HostGuard.done` ends it in any state."""

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
        """When it was offered; from its admission on: when it was admitted."""
        self.told: Told | None = None
        self.admission = WAITS
        self.pause: Pause | None = None
        """Why it had to wait, and `told` hears the outcome, or has heard it; None: it had not."""


Told = Callable[[GuardedPacket], None]
"""Hears that a packet that waited is admitted, or refused: see its `admission`."""
Decided = Callable[[Admission], None]
"""Hears what becomes of a CONNECT that waited."""
Call = Callable[[], None]


@final
class GuardedClient:
    """One client of a host, or one principal: it has a window of its own. `HostGuard.client`."""

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
        """Packets without room, in the order in which they came."""
        self.decided: Decided | None = None
        """While its CONNECT waits."""
        self.waiting_bytes = 0
        """What its packets that wait take."""
        self.runnable = runnable

    def schedule(self) -> None:
        """There may be room now (`flowguard.flow.guard.Guarded`)."""
        self.runnable[self] = None


@final
class HostGuard:
    """One per host. `now_s`: seconds of any monotonic clock, the same one in all calls.

    Clients have `settings.window_max` packets in process at most, and `waiting_max` that wait for
    room, for `patience_s` at most; what is beyond that is refused with a time to come back. What
    all have waiting takes `settings.unfinished_bytes_max` at most, `WAITING_BYTES` for each besides
    its size; from three quarters on whoever has less of it goes before whoever has more.
    `settings.store_objective_s` is how long a packet may well be in process.

    A wrong argument raises ValueError, and nothing is changed.
    """

    def __init__(
        self,
        settings: FlowSettings | None = None,
        *,
        waiting_max: int = 100,
        patience_s: float | None = None,
        draw: Callable[[], float] | None = None,
    ) -> None:
        """`patience_s`: None: that of CONNECTs; `draw`: in [0, 1), for jitter."""
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
        """The oldest first."""
        self._waiting: OrderedDict[GuardedPacket, None] = OrderedDict()
        """Those of all clients, the oldest first."""
        self._waiting_clients: dict[GuardedClient, None] = {}
        """Who has a packet that waits."""
        self._waiting_budget = FairBudget(settings.unfinished_bytes_max)
        self._runnable: dict[GuardedClient, None] = {}
        self._calls: list[Call] = []
        """Callbacks to be called when the lock is given back."""
        self._ticked_s: float | None = None
        self._finished = 0
        self._response_sum_s = 0.0
        self._rate_per_s = 0.0
        self.refused: dict[Reason, int] = {}
        """Packets refused since the start; CONNECTs: `connects_refused`."""

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
        """Their sizes."""
        return self._node.in_process_bytes

    @property
    def waiting_count(self) -> int:
        """Packets that wait for room."""
        return len(self._waiting)

    @property
    def connects_in_process(self) -> int:
        """CONNECTs admitted and not answered."""
        return self._guard.gate.in_process

    @property
    def connects_waiting(self) -> int:
        """CONNECTs that wait for a place, or for their refusal."""
        return self._guard.gate.buffered

    @property
    def connects_refused(self) -> dict[Reason, int]:
        """CONNECTs refused and dropped since the start, by reason."""
        return self._guard.gate.refused

    # --- clients -----------------------------------------------------------------------------

    def client(self, client_id: str = "", tenant: str = "") -> GuardedClient:
        """A new client. `client_id`: a second CONNECT of the same supersedes the first, unless it
        is empty; `tenant`: with whom it shares, while clients take turns."""
        return GuardedClient(client_id, tenant, AdmissionWindow(self._node), self._runnable)

    def offer(
        self,
        client: GuardedClient,
        now_s: float,
        *,
        size_bytes: int = 0,
        decided: Decided | None = None,
    ) -> Admission:
        """A CONNECT has come. Who is admitted is `answered` in the end, or `gone`.

        If it has to wait (`Verdict.DELAY`), `decided` is told what becomes of it, once. A client
        has one CONNECT at a time.
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
            calls = self._settle(now_s)
        _call(calls)
        return admission

    def answered(self, client: GuardedClient, now_s: float) -> None:
        """Its CONNECT is over, or given up: its place is free. Safe to repeat."""
        with self._lock:
            self._guard.answered(client, now_s)
            self._on_decided(client, LEFT, now_s)
            calls = self._settle(now_s)
        _call(calls)

    def gone(self, client: GuardedClient, now_s: float) -> None:
        """It is gone: what waits is dropped, and told so; what is in process counts until it is
        `done`."""
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
        """A packet is to be worked on: its `admission` says whether it may be, and why not.

        If it has to wait, which its `pause` says for good, `told` hears when it is admitted or
        refused; whoever does not want to wait calls `done`. Else `told` hears nothing.
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
        """It is done, or nobody waits for it any more: nothing is held for it. Safe to repeat."""
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
        """Every 100 ms: windows follow the pressure, and who waited too long is refused."""
        with self._lock:
            self._observe(now_s)
            limit = self._node.limit
            self._guard.tick(now_s)
            if self._node.limit > limit:
                # Who waits for one of its own, which may take long, has room without that now.
                self._runnable.update(self._waiting_clients)
            for _ in range(LATE_MAX):
                packet = next(iter(self._waiting), None)
                if packet is None or now_s - packet.since_s < self._patience_s:
                    break
                # Who came first among all came first among those of its client.
                packet.client.waiting.popleft()
                self._forget(packet, self._refusal(Reason.GATE_DEADLINE))
            calls = self._settle(now_s)
        _call(calls)

    def rest(self) -> None:
        """Nobody ticks for a while: the next tick, whenever it comes, is not late."""
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

    def _refusal(self, reason: Reason) -> Admission:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        count = len(self._waiting) + len(self._in_process)
        wait_s = count / self._rate_per_s if self._rate_per_s > 0 else self._patience_s
        retry_after_s = min(RETRY_MAX_S, max(RETRY_MIN_S, wait_s * (0.5 + self._draw())))
        return Admission(Verdict.REJECT, reason, retry_after_s)

    def _forget(self, packet: GuardedPacket, admission: Admission) -> None:
        """It waits no more, and is taken from its client's queue already."""
        client, size_bytes = packet.client, WAITING_BYTES + packet.size_bytes
        del self._waiting[packet]
        if not client.waiting:
            del self._waiting_clients[client]
        client.waiting_bytes -= size_bytes
        self._waiting_budget.give_back(size_bytes, client.waiting_bytes)
        if admission is not ADMITTED:
            client.window.needs = 1  # What whoever is next weighs is not known before it is asked.
        packet.admission = admission
        self._runnable[client] = None
        if packet.told is not None:
            self._calls.append(partial(packet.told, packet))

    def _on_decided(self, client: GuardedClient, admission: Admission, now_s: float) -> None:
        decided, client.decided = client.decided, None
        if decided is not None:
            self._calls.append(partial(decided, admission))

    def _run(self, client: GuardedClient, now_s: float) -> None:
        """Admit what waits, as far as there is room."""
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
        """Until nobody has room who waits for it; the callbacks to be called without the lock."""
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
