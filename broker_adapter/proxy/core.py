"""ProxyCore: the state that all pairs of a proxy share, without sockets: guard and upstreams.

Pressure is what the proxy can observe of an upstream, by fixed objectives: the time for which
packets stay unacknowledged, or unsent for QoS 0 (`store_objective_s`); the time to its CONNACK,
which the gate measures itself (`connect_objective_s`); rejections because it is busy; and its
absence.

A CONNECT goes to the upstream with the least pressure, and among calm ones to that with the fewest
clients. An unavailable upstream is tried by one CONNECT at a time, which goes to another one if
that fails. While no upstream is available, all CONNECTs wait in and behind the gate until their
timeout; then they get 0x88 (Server unavailable) with a retry-after hint. When an upstream is
available again, the gate begins with 4 CONNECTs in process, as for a node that has lost a peer. An
upstream is available if one of the addresses of its name answers.
"""

from collections.abc import Callable, Sequence
from typing import Final, final

from broker_adapter.proxy.host import PairHost
from broker_adapter.proxy.life import BY_UPSTREAM, ProxyLives
from broker_adapter.proxy.pair import ProxyPair, ProxySide
from broker_adapter.proxy.states import OPENED
from broker_adapter.proxy.upstream import BUSY, BUSY_S, Dial, Place, Upstream
from flowguard.broker.sockets.link import Link
from flowguard.config import KIB, FlowSettings
from flowguard.flow import Admission, Arrival, ConnectGate, Guard, Reason
from flowguard.flow.load.signals import StoreState
from flowguard.node.connect.accept_state import Door
from flowguard.types import ReasonCode

PROBE_S: Final = 0.5
"""Time between two tries of an unavailable upstream, seconds."""
CONNECT_BYTES_MAX: Final = 512 * KIB
LOOKAHEAD_BYTES: Final = 64 * KIB
"""Maximum number of bytes read ahead of a client without capacity, for the control lane."""


@final
class ProxyCore(PairHost[ProxyPair]):
    """Shared by the pairs of a proxy. The owner dials the pairs in `to_dial`. It sends the output
    of pairs from `take_dirty`, and then calls their `weigh`. It runs the `runnable` pairs, and
    calls `turn` after a slice of work and `tick` every 100 ms.
    """

    def __init__(
        self,
        settings: FlowSettings,
        memory_bytes: int,
        upstreams: Sequence[Upstream],
        *,
        draw: Callable[[], float],
        lookahead_bytes: int = LOOKAHEAD_BYTES,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """`draw`: random in [0, 1); `on_error`: called with errors, which are raised without it."""
        self._on_error = on_error
        self.guard: Guard[ProxyPair] = Guard(settings, memory_bytes, self._decided, draw=draw)
        super().__init__(
            self.guard.window,
            cost_bytes=settings.cost_bytes,
            connect_bytes_max=CONNECT_BYTES_MAX,
            lookahead_bytes=lookahead_bytes,
            held_bytes_max=memory_bytes // 4,
        )
        self.settings = settings
        self.door = Door()
        self.upstreams = list(upstreams)
        self._draw = draw
        self._was_tight = False
        self.pairs: dict[ProxyPair, None] = {}
        """Pairs that have not ended."""
        self.to_dial: list[ProxyPair] = []
        """Pairs that need a connection to their `broker`; some may have ended."""
        self._dialing: dict[ProxyPair, Dial] = {}
        self._parked: dict[ProxyPair, None] = {}
        """Admitted pairs, while no upstream is available."""
        self._newcomers: dict[ProxyPair, None] = {}
        """Pairs that have not sent CONNECT, oldest first."""
        self.lives: ProxyLives[ProxyPair] = ProxyLives(self.counters)
        self._leaving: dict[ProxyPair, float] = {}
        """Pairs at an upstream whose client has stopped sending or receiving, with the time of
        their last progress, oldest first."""

    def use(self, settings: FlowSettings) -> bool:
        """Use other limits from now on; return False if the policy cannot change them."""
        if not self.guard.use(settings):
            return False
        self.settings = settings
        return True

    @property
    def is_up(self) -> bool:
        """True if an upstream answered the last try."""
        return any(upstream.is_up for upstream in self.upstreams)

    @property
    def in_process_count(self) -> int:
        """Packets in process."""
        return sum(len(upstream.in_process) for upstream in self.upstreams)

    def opened(self, transport: object, now_s: float, waited_s: float = 0.0) -> ProxySide:
        """Make a pair for an accepted socket (`flowguard.broker.sockets.listeners.Host`)."""
        self.counters.connections_accepted += 1
        pair = ProxyPair(self, now_s, waited_s)
        pair.client.transport = transport
        self.pairs[pair] = None
        self._newcomers[pair] = None
        return pair.client

    def closed(self) -> None:
        """Do nothing, because the pair of the closed socket knows or ends soon."""

    def broke(self, error: Exception) -> None:
        """Report that a layer has failed and its connection is closed."""
        if self._on_error is None:
            raise error
        self._on_error(error)

    def shook_hands(self, connection: ProxySide, now_s: float) -> None:
        """Our part of a layer's handshake is done: the connect timeout begins now."""
        pair = connection.pair
        if self._newcomers.pop(pair, pair) is None:
            pair.opened_s = now_s
            self._newcomers[pair] = None

    def awaits_connect(self, connection: ProxySide) -> bool:
        """True if no CONNECT has come yet."""
        return connection.pair.state is OPENED

    # --- the gate ----------------------------------------------------------------------------

    def offer(self, pair: ProxyPair, arrival: Arrival, now_s: float) -> None:
        self._newcomers.pop(pair, None)
        self.lives.offered(pair, arrival.client_id)
        pair.decided(self.guard.offer(pair, arrival, now_s), now_s)

    def _decided(self, pair: ProxyPair, admission: Admission, now_s: float) -> None:
        pair.decided(admission, now_s)

    def answered(self, pair: ProxyPair, reason: int, now_s: float) -> None:
        self.guard.answered(pair, now_s)
        if reason in BUSY:
            assert pair.broker is not None
            pair.broker.busy_until_s = now_s + BUSY_S
        if reason:
            self.lives.rejected(pair, reason, BY_UPSTREAM)
        else:
            self.lives.connected(pair, now_s)

    def refused(self, pair: ProxyPair, reason: ReasonCode, why: Reason | None) -> None:
        self.lives.rejected(pair, int(reason), str(why or ""))

    def gone(self, pair: ProxyPair, now_s: float) -> None:
        link = pair.client.transport
        self.lives.gone(pair, link.peer() if isinstance(link, Link) else "", now_s)
        self.guard.gone(pair, now_s)
        for place in (self.pairs, self._newcomers, self._parked):
            place.pop(pair, None)
        self._leaving.pop(pair, None)
        self._hang_up(pair)

    # --- the upstreams -----------------------------------------------------------------------

    def dial(self, pair: ProxyPair, now_s: float) -> None:
        """Choose an upstream for an admitted pair, and have it dialed."""
        pair.life.admitted_s = pair.life.admitted_s or now_s
        upstream = self._choose(now_s)
        if upstream is None:
            self._parked[pair] = None
            return
        pair.broker = upstream
        upstream.dials += 1
        upstream.pairs_count += 1
        self._dialing[pair] = Dial(upstream, now_s)
        self.to_dial.append(pair)

    def _choose(self, now_s: float) -> Upstream | None:
        """Return an upstream to try again, or the one with the least pressure, or None."""
        best: Upstream | None = None
        least = (0.0, 0)
        for upstream in self.upstreams:
            if upstream.is_up:
                pressure = upstream.pressure(now_s, self.settings.store_objective_s)
                weight = (pressure, upstream.pairs_count)
                if best is None or weight < least:
                    best, least = upstream, weight
            elif not upstream.dials and now_s >= upstream.probe_s:
                return upstream
        return best

    def _hang_up(self, pair: ProxyPair) -> None:
        """Remove a pair from its upstream."""
        upstream = pair.broker
        if upstream is None:
            return
        pair.broker = None
        upstream.pairs_count -= 1
        if self._dialing.pop(pair, None) is not None:
            upstream.dials -= 1

    def place_of(self, pair: ProxyPair) -> Place:
        """Return the address at which a pair's upstream is dialed now."""
        return self._dialing[pair].place

    def dialed(self, pair: ProxyPair, now_s: float) -> None:
        """The connection is open, so the upstream is available."""
        upstream = pair.broker
        assert upstream is not None
        self._dialing.pop(pair).answered()
        upstream.dials -= 1
        self.answers(upstream, now_s)
        pair.upstream_opened(now_s)

    def answers(self, upstream: Upstream, now_s: float) -> None:
        """An upstream is available; pairs that wait for one are dialed."""
        if upstream.is_up:
            return
        upstream.is_up = True
        upstream.why = ""
        parked, self._parked = self._parked, {}
        for waiting in parked:
            self.dial(waiting, now_s)

    def fails(self, upstream: Upstream, why: str, now_s: float) -> None:
        """An upstream is unavailable for the reason `why`."""
        upstream.why = why
        if upstream.is_up:
            upstream.is_up = False
            upstream.away_since_s = now_s
            gate = self.guard.gate
            if isinstance(gate, ConnectGate):
                gate.peer_lost(now_s)
        upstream.probe_s = now_s + PROBE_S * (0.5 + self._draw())

    def away_s(self, now_s: float) -> float:
        """Return how long no upstream has been available, seconds, or 0."""
        return 0.0 if self.is_up else now_s - max(each.away_since_s for each in self.upstreams)

    def not_dialed(self, pair: ProxyPair, now_s: float, why: str = "") -> None:
        """The address did not answer: try the next address of the upstream, or another upstream. If
        there is none, the pair waits until one is available."""
        upstream = pair.broker
        if upstream is None:
            return
        if self._dialing[pair].go_on(now_s):
            self.to_dial.append(pair)
            return
        self._hang_up(pair)
        self.fails(upstream, why or "it does not answer", now_s)
        self.dial(pair, now_s)

    def no_descriptor(self, pair: ProxyPair, now_s: float) -> None:
        """Reject a pair because this process has no descriptor for its connection."""
        self.counters.drop(Reason.DESCRIPTORS)
        pair.refuse(ReasonCode.SERVER_BUSY, self.guard.gate.retry_after_s(self._draw()), now_s)

    def _look_after_upstreams(self, now_s: float) -> list[ProxyPair]:
        """Try upstreams again, reject expired pairs, and return pairs that dial for too long."""
        late = [pair for pair, dial in self._dialing.items() if now_s >= dial.until_s]
        for pair in list(self._parked):
            if now_s - pair.offered_s >= self.settings.connect_patience_s:
                retry_after_s = self.guard.gate.retry_after_s(self._draw())
                pair.refuse(ReasonCode.SERVER_UNAVAILABLE, retry_after_s, now_s)
        while self._parked and self._choose(now_s) is not None:
            pair = next(iter(self._parked))
            del self._parked[pair]
            self.dial(pair, now_s)
        return late

    # --- packets -----------------------------------------------------------------------------

    def paused(self, pair: ProxyPair, now_s: float) -> None:
        self.guard.paused(pair, now_s)

    def leaving(self, pair: ProxyPair, now_s: float) -> None:
        self._leaving.pop(pair, None)
        self._leaving[pair] = now_s

    # --- time --------------------------------------------------------------------------------

    def take_dirty(self) -> list[ProxyPair]:
        """Return the pairs with output, which the caller sends."""
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for pair in dirty:
                pair.is_dirty = False
        return dirty

    def take_runnable(self) -> list[ProxyPair]:
        """Return the pairs to run; the caller must reset `queued` of each."""
        runnable = self.runnable
        if runnable:
            self.runnable = []
        return runnable

    def turn(self, now_s: float) -> None:
        """After a slice of work: let pairs use the capacity that it has freed."""
        if self.guard.has_work:
            self.guard.turn(now_s)

    def tick(self, now_s: float, heard_s: float | None = None) -> list[ProxyPair]:
        """Every 100 ms; return the pairs whose dial took too long, to be ended.

        `heard_s`: time until which all arrived data are read, or None for `now_s`.
        """
        self._observe(now_s)
        silent_since_s = (now_s if heard_s is None else heard_s) - self.settings.connect_timeout_s
        while self._newcomers:
            pair = next(iter(self._newcomers))
            if pair.opened_s > silent_since_s:
                break
            handshakes = self.door.handshakes
            if handshakes is not None and handshakes.holds(pair.client.transport):
                self.shook_hands(pair.client, now_s)  # The client waits for the proxy.
                continue
            pair.end(now_s)
        while self._leaving:
            pair = next(iter(self._leaving))
            if self._leaving[pair] > silent_since_s:
                break
            pair.end(now_s)
        if self._was_tight and not self.is_tight:
            for pair in self.pairs:  # Some of them may be read again.
                pair.soil()
        self._was_tight = self.is_tight
        self.guard.tick(now_s, heard_s)
        late = self._look_after_upstreams(now_s)
        self.turn(now_s)
        return late

    def _observe(self, now_s: float) -> None:
        observer, finished = self.guard.observer, self.finished
        if finished:
            observer.finished(finished, self.response_sum_s)
            observer.committed(self.response_sum_s / finished, now_s)
        if self.in_process_count:
            observer.committing(max(upstream.age_s(now_s) for upstream in self.upstreams))
        self.finished = 0
        self.response_sum_s = 0.0
        state = StoreState.FLOWING if self.is_up else StoreState.STOPPED
        up = [upstream for upstream in self.upstreams if upstream.is_up]
        if up and all(upstream.is_busy(now_s) for upstream in up):
            state = StoreState.DELAYED
        observer.store(state)
        self.guard.observe_memory(self.held_bytes + self.door.handshake_bytes)
