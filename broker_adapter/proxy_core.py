"""ProxyCore: what all pairs of a proxy share, without sockets: the guard, the upstream's health.

Pressure is what can be seen of the upstream from here, by fixed objectives: how long packets stay
unacknowledged, and those of QoS 0 unsent (`store_objective_s`); how long it takes to its CONNACK,
which the gate measures itself (`connect_objective_s`); that it refuses for being busy; that it is
not there.

While the upstream is not there, one CONNECT at a time tries whether it is back. The others wait, in
their places at the gate and behind it, until their patience is over: 136 "Server unavailable", with
a time to come back. When it is back the gate begins with 4 CONNECTs in process, as for a node that
has lost a peer.
"""

from collections.abc import Callable
from typing import Final, final

from broker_adapter.proxy_packets import Outstanding
from broker_adapter.proxy_pair import PairState, ProxyPair
from flowguard.config import KIB, FlowSettings
from flowguard.flow import Admission, Arrival, ConnectGate, Guard, NodeWindow
from flowguard.flow.signals import StoreState
from flowguard.types import ReasonCode

PROBE_S: Final = 0.5
"""Between two tries to reach an upstream that was not there."""
DIAL_S: Final = 5.0
"""A dial that takes longer has failed."""
BUSY_S: Final = 1.0
"""So long the upstream's own refusals are pressure."""
CONNECT_BYTES_MAX: Final = 512 * KIB
LOOKAHEAD_BYTES: Final = 64 * KIB


@final
class ProxyCore:
    """Its owner dials whom it finds in `to_dial`, sends what `dirty` pairs have and then lets them
    `weigh`, and calls `turn` after a slice of work, `tick` every 100 ms."""

    def __init__(
        self,
        settings: FlowSettings,
        memory_bytes: int,
        *,
        draw: Callable[[], float],
        lookahead_bytes: int = LOOKAHEAD_BYTES,
    ) -> None:
        """`draw`: in [0, 1)."""
        self.guard: Guard[ProxyPair] = Guard(settings, memory_bytes, self._decided, draw=draw)
        self._settings = settings
        self._draw = draw
        self._held_bytes_max = memory_bytes // 4
        self.lookahead_bytes = lookahead_bytes
        self._was_tight = False
        self.cost_bytes = settings.cost_bytes
        self.connect_bytes_max = CONNECT_BYTES_MAX
        self.held_bytes = 0
        """All that pairs hold, bytes."""
        self.pairs: dict[ProxyPair, None] = {}
        """Those that have not ended."""
        self.runnable: dict[ProxyPair, None] = {}
        self.dirty: dict[ProxyPair, None] = {}
        """Pairs with something to send, or to close."""
        self.to_dial: dict[ProxyPair, None] = {}
        """Pairs whose connection to the upstream is to be opened."""
        self._dialing: dict[ProxyPair, float] = {}
        self._parked: dict[ProxyPair, None] = {}
        """Admitted, while the upstream is not there."""
        self._is_down = False
        self._probe_s = 0.0
        self._busy_until_s = 0.0
        self._newcomers: dict[ProxyPair, None] = {}
        """Pairs that have not said CONNECT, the oldest first."""
        self._in_process: dict[Outstanding, None] = {}
        """The oldest first."""
        self._finished = 0
        self._response_sum_s = 0.0
        self.refused_by_upstream = 0
        self.unavailable = 0
        """CONNECTs refused with 136."""

    @property
    def is_up(self) -> bool:
        """Whether the upstream was there when it was last asked."""
        return not self._is_down

    @property
    def in_process_count(self) -> int:
        return len(self._in_process)

    @property
    def is_tight(self) -> bool:
        """Whether all pairs hold so much that only who holds nothing is read."""
        return self.held_bytes >= self._held_bytes_max

    @property
    def node_window(self) -> NodeWindow:
        """The packets that all pairs together have in process."""
        return self.guard.window

    def opened(self, now_s: float) -> ProxyPair:
        """A client's socket was accepted."""
        pair = ProxyPair(self, now_s)
        self.pairs[pair] = None
        self._newcomers[pair] = None
        return pair

    # --- the gate ----------------------------------------------------------------------------

    def offer(self, pair: ProxyPair, arrival: Arrival, now_s: float) -> None:
        self._newcomers.pop(pair, None)
        pair.decided(self.guard.offer(pair, arrival, now_s), now_s)

    def _decided(self, pair: ProxyPair, admission: Admission, now_s: float) -> None:
        pair.decided(admission, now_s)

    def answered(self, pair: ProxyPair, now_s: float, *, is_busy: bool) -> None:
        """The upstream's CONNACK has come."""
        self.guard.answered(pair, now_s)
        if is_busy:
            self.refused_by_upstream += 1
            self._busy_until_s = now_s + BUSY_S

    def gone(self, pair: ProxyPair, now_s: float) -> None:
        """It has ended: nothing is remembered of it."""
        self.guard.gone(pair, now_s)
        for place in (self.pairs, self._newcomers, self.to_dial, self._parked, self.runnable):
            place.pop(pair, None)
        self._dialing.pop(pair, None)

    # --- the upstream ------------------------------------------------------------------------

    def dial(self, pair: ProxyPair, now_s: float) -> None:
        """It has a place: its connection to the upstream is to be opened."""
        if self._is_down:
            self._parked[pair] = None
        else:
            self.to_dial[pair] = None
            self._dialing[pair] = now_s

    def dialed(self, pair: ProxyPair, now_s: float) -> None:
        """The connection is there: so is the upstream."""
        self._dialing.pop(pair, None)
        if self._is_down:
            self._is_down = False
            parked, self._parked = self._parked, {}
            for waiting in parked:
                self.dial(waiting, now_s)
        pair.upstream_opened(now_s)

    def not_dialed(self, pair: ProxyPair, now_s: float) -> None:
        """There is no connection to be had: the pair waits for the upstream's return."""
        self._dialing.pop(pair, None)
        if pair.ended:
            return
        if not self._is_down:
            self._is_down = True
            gate = self.guard.gate
            if isinstance(gate, ConnectGate):
                gate.peer_lost(now_s)
        self._probe_s = now_s + PROBE_S * (0.5 + self._draw())
        self._parked[pair] = None

    def _look_after_upstream(self, now_s: float) -> list[ProxyPair]:
        """Probe, and give up on those whose patience is over; who dials for too long."""
        late = [pair for pair, since_s in self._dialing.items() if now_s - since_s >= DIAL_S]
        for pair in list(self._parked):
            if now_s - pair.offered_s >= self._settings.connect_patience_s:
                self.unavailable += 1
                retry_after_s = self.guard.gate.retry_after_s(self._draw())
                pair.refuse(ReasonCode.SERVER_UNAVAILABLE, retry_after_s, now_s)
        if self._is_down and self._parked and not self._dialing and now_s >= self._probe_s:
            pair = next(iter(self._parked))
            del self._parked[pair]
            self.to_dial[pair] = None
            self._dialing[pair] = now_s
        return late

    # --- packets -----------------------------------------------------------------------------

    def started(self, packet: Outstanding) -> None:
        self._in_process[packet] = None

    def done(self, packet: Outstanding, now_s: float) -> None:
        del self._in_process[packet]
        self._finished += 1
        self._response_sum_s += now_s - packet.since_s

    def paused(self, pair: ProxyPair, now_s: float) -> None:
        self.guard.paused(pair, now_s)

    # --- time --------------------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        """After a slice of work: whoever waited for what was given back goes on."""
        while self.runnable or self.guard.has_work:
            self.guard.turn(now_s)
            for pair in list(self.runnable):
                self.runnable.pop(pair, None)
                if not pair.ended:
                    pair.run(now_s)

    def tick(self, now_s: float) -> list[ProxyPair]:
        """Every 100 ms; returns the pairs whose dial took too long, to be given up."""
        self._observe(now_s)
        while self._newcomers:
            pair = next(iter(self._newcomers))
            if now_s - pair.opened_s < self._settings.connect_timeout_s:
                break
            pair.end(now_s)
        if self._was_tight and not self.is_tight:
            self.dirty.update(self.pairs)  # Some of them may be read again.
        self._was_tight = self.is_tight
        self.guard.tick(now_s)
        late = self._look_after_upstream(now_s)
        self.turn(now_s)
        return late

    def _observe(self, now_s: float) -> None:
        observer, finished = self.guard.observer, self._finished
        if finished:
            observer.finished(finished, self._response_sum_s)
            observer.committed(self._response_sum_s / finished, now_s)
        if self._in_process:
            observer.committing(now_s - next(iter(self._in_process)).since_s)
        self._finished = 0
        self._response_sum_s = 0.0
        state = StoreState.STOPPED if self._is_down else StoreState.FLOWING
        if state is StoreState.FLOWING and now_s < self._busy_until_s:
            state = StoreState.DELAYED
        observer.store(state)
        self.guard.observe_memory(self.held_bytes)


def is_over(pair: ProxyPair) -> bool:
    """Whether its sockets can be closed: it has ended, and its last bytes are sent."""
    return pair.state is PairState.ENDED and not pair.to_client and not pair.to_upstream
