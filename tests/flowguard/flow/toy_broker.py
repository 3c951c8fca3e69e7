"""A small broker behind a guard, without codec, journal and node: what it admits is a list."""

from collections import deque
from dataclasses import dataclass, field

from flowguard.config import FlowSettings
from flowguard.flow import Admission, AdmissionWindow, Arrival, Guard, Verdict

MEMORY_BYTES = 1_000_000_000
Packet = tuple[int, int]
"""Cost and size in bytes of a packet."""


@dataclass(eq=False)
class ToyClient:
    """One connection, from its CONNECT on; `flowguard.flow.guard.Guarded`."""

    broker: "ToyBroker"
    client_id: str
    tenant: str
    size_bytes: int = 100
    window: AdmissionWindow | None = None
    admissions: list[Admission] = field(default_factory=list)
    """Verdicts of the guard on its CONNECT, in order."""
    unread: deque[Packet] = field(default_factory=deque)
    is_gone: bool = False

    def schedule(self) -> None:
        """Run it again in the next turn; the guard schedules no ended client."""
        assert not self.is_gone
        if self not in self.broker.runnable:
            self.broker.runnable.append(self)


class ToyBroker:
    """Tells its guard what happens, and does what the guard says; `journal_max`: its own bound."""

    def __init__(self, settings: FlowSettings, journal_max: int) -> None:
        self.guard: Guard[ToyClient] = Guard(
            settings, MEMORY_BYTES, self.decided, draw=lambda: 0.5, is_full=self.is_full
        )
        self.journal_max = journal_max
        self.now_s = 0.0
        self.runnable: list[ToyClient] = []
        self.waiting: list[ToyClient] = []
        """CONNECTs that the guard has not decided."""
        self.serving: list[ToyClient] = []
        """CONNECTs admitted and not answered."""
        self.connected: list[ToyClient] = []
        self.journal: list[tuple[ToyClient, Packet]] = []
        """Packets started and not done; the clients of some have ended."""

    def is_full(self) -> bool:
        return len(self.journal) >= self.journal_max

    def connect(self, client: ToyClient) -> Admission:
        """A CONNECT has come."""
        arrival = Arrival(client.client_id, client.size_bytes)
        admission = self.guard.offer(client, arrival, self.now_s)
        if admission.verdict is Verdict.DELAY:
            self.waiting.append(client)
        else:
            self._follow(client, admission)
        return admission

    def decided(self, client: ToyClient, admission: Admission, now_s: float) -> None:
        """It had to wait, and was not decided before."""
        assert now_s == self.now_s
        self.waiting.remove(client)
        self._follow(client, admission)

    def _follow(self, client: ToyClient, admission: Admission) -> None:
        client.admissions.append(admission)
        if admission.verdict is Verdict.ADMIT:
            self.serving.append(client)

    def answer(self, client: ToyClient) -> None:
        """CONNACK."""
        self.serving.remove(client)
        self.connected.append(client)
        client.window = AdmissionWindow(self.guard.window)
        self.guard.answered(client, self.now_s)

    def send(self, client: ToyClient, packets: list[Packet]) -> None:
        """Packets have come on its socket."""
        client.unread.extend(packets)
        self._run(client)

    def _run(self, client: ToyClient) -> None:
        window, unread = client.window, client.unread
        assert window is not None
        while unread and window.room():
            cost, size_bytes = unread[0]
            if not window.fits(cost):
                break
            window.admit(cost, size_bytes)
            self.journal.append((client, unread.popleft()))
            if self.guard.window.credits is not None:
                window.spend(1)
            if self.is_full():
                self.guard.window.closed = True
        window.rest(bool(unread))
        if unread:
            if window.room():
                client.schedule()
            else:
                self.guard.paused(client, self.now_s)

    def done(self, index: int) -> None:
        """Complete this packet in process, even if its client has ended."""
        client, (cost, size_bytes) = self.journal.pop(index)
        assert client.window is not None
        client.window.settle(cost, size_bytes)
        if client.unread:
            client.schedule()

    def leave(self, client: ToyClient) -> None:
        """End its connection, in any state."""
        client.is_gone = True
        client.unread.clear()
        for place in (self.waiting, self.serving, self.connected, self.runnable):
            if client in place:
                place.remove(client)
        self.guard.gone(client, self.now_s)

    def turn(self) -> None:
        """End a slice of work: run the clients that may go on."""
        self.guard.turn(self.now_s)
        runnable, self.runnable = self.runnable, []
        for client in runnable:
            self._run(client)

    def tick(self, after_s: float, pressure: float = 0.0) -> None:
        """Time passes; something presses so hard, by its objective."""
        self.now_s += after_s
        self.guard.observer.replication(0.1 * pressure)
        self.guard.tick(self.now_s)
