"""ProxyCore: what all pairs of a proxy share, without sockets: the guard, the upstreams' health.

Pressure is what can be seen of an upstream from here, by fixed objectives: how long packets stay
unacknowledged, and those of QoS 0 unsent (`store_objective_s`); how long it takes to its CONNACK,
which the gate measures itself (`connect_objective_s`); that it refuses for being busy; that it is
not there.

Of several upstreams a CONNECT goes to the one with the least pressure, and of those that are calm
to the one with the fewest clients. One that is not there is tried again by one CONNECT at a time,
which goes elsewhere if it still is not. While none is there the others wait, in their places at the
gate and behind it, until their patience is over: 136 "Server unavailable", with a time to come
back. When one is back the gate begins with 4 CONNECTs in process, as for a node that has lost a
peer. An upstream is there if one of the addresses of its name answers.
"""

from collections.abc import Callable, Sequence
from typing import Final, final

from broker_adapter.proxy.host import PairHost
from broker_adapter.proxy.pair import ProxyPair, ProxySide
from broker_adapter.proxy.states import OPENED
from broker_adapter.proxy.upstream import BUSY_S, Dial, Place, Upstream
from flowguard.config import KIB, FlowSettings
from flowguard.flow import Admission, Arrival, ConnectGate, Guard, Reason
from flowguard.flow.load.signals import StoreState
from flowguard.node.connect.accept_state import Door
from flowguard.session.counters import Counters
from flowguard.types import ReasonCode

PROBE_S: Final = 0.5
"""Between two tries to reach an upstream that was not there."""
CONNECT_BYTES_MAX: Final = 512 * KIB
LOOKAHEAD_BYTES: Final = 64 * KIB
"""So far a client without room is read ahead, for the control lane."""


@final
class ProxyCore(PairHost[ProxyPair]):
    """Its owner dials whom it finds in `to_dial`, sends what `take_dirty` pairs have and then lets
    them `weigh`, runs the `runnable`, calls `turn` after a slice of work, and `tick` every 100
    ms."""

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
        """`draw`: in [0, 1); `on_error` hears what broke in a connection, None: it is raised."""
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
        self.counters = Counters()
        self.upstreams = list(upstreams)
        self._draw = draw
        self._was_tight = False
        self.pairs: dict[ProxyPair, None] = {}
        """Those that have not ended."""
        self.to_dial: list[ProxyPair] = []
        """Pairs whose connection to their `broker` is to be opened; some may have ended."""
        self._dialing: dict[ProxyPair, Dial] = {}
        self._parked: dict[ProxyPair, None] = {}
        """Admitted, while no upstream is there."""
        self._newcomers: dict[ProxyPair, None] = {}
        """Pairs that have not said CONNECT, the oldest first."""
        self._leaving: dict[ProxyPair, float] = {}
        """Pairs at an upstream whose client sends or hears no more: since when nothing of them has
        moved, the longest first."""

    @property
    def is_up(self) -> bool:
        """Whether an upstream was there when it was last asked."""
        return any(upstream.is_up for upstream in self.upstreams)

    @property
    def in_process_count(self) -> int:
        """Packets in process."""
        return sum(len(upstream.in_process) for upstream in self.upstreams)

    def opened(self, transport: object, now_s: float, waited_s: float = 0.0) -> ProxySide:
        """A client's socket was accepted (`flowguard.broker.sockets.listeners.Host`)."""
        self.counters.connections_accepted += 1
        pair = ProxyPair(self, now_s, waited_s)
        pair.client.transport = transport
        self.pairs[pair] = None
        self._newcomers[pair] = None
        return pair.client

    def closed(self) -> None:
        """A socket was closed; its pair knows, or has not ended yet."""

    def broke(self, error: Exception) -> None:
        """A layer has failed at a connection, which is closed."""
        if self._on_error is None:
            raise error
        self._on_error(error)

    def shook_hands(self, connection: ProxySide, now_s: float) -> None:
        """Our part of a layer's handshake is done: the time for its CONNECT begins now."""
        pair = connection.pair
        if self._newcomers.pop(pair, pair) is None:
            pair.opened_s = now_s
            self._newcomers[pair] = None

    def awaits_connect(self, connection: ProxySide) -> bool:
        """Whether no CONNECT has come yet."""
        return connection.pair.state is OPENED

    # --- the gate ----------------------------------------------------------------------------

    def offer(self, pair: ProxyPair, arrival: Arrival, now_s: float) -> None:
        self._newcomers.pop(pair, None)
        pair.decided(self.guard.offer(pair, arrival, now_s), now_s)

    def _decided(self, pair: ProxyPair, admission: Admission, now_s: float) -> None:
        pair.decided(admission, now_s)

    def answered(self, pair: ProxyPair, now_s: float, *, is_busy: bool) -> None:
        self.guard.answered(pair, now_s)
        if is_busy:
            assert pair.broker is not None
            pair.broker.busy_until_s = now_s + BUSY_S

    def gone(self, pair: ProxyPair, now_s: float) -> None:
        self.guard.gone(pair, now_s)
        for place in (self.pairs, self._newcomers, self._parked):
            place.pop(pair, None)
        self._leaving.pop(pair, None)
        self._hang_up(pair)

    # --- the upstreams -----------------------------------------------------------------------

    def dial(self, pair: ProxyPair, now_s: float) -> None:
        """It has a place: its connection to an upstream is to be opened."""
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
        """The one that is tried again, else that with the least pressure; None: none is there."""
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
        """It is not with its upstream, or on its way to it, any more."""
        upstream = pair.broker
        if upstream is None:
            return
        pair.broker = None
        upstream.pairs_count -= 1
        if self._dialing.pop(pair, None) is not None:
            upstream.dials -= 1

    def place_of(self, pair: ProxyPair) -> Place:
        """The address at which its upstream is to be dialed now."""
        return self._dialing[pair].place

    def dialed(self, pair: ProxyPair, now_s: float) -> None:
        """The connection is there: so is the upstream."""
        upstream = pair.broker
        assert upstream is not None
        self._dialing.pop(pair).answered()
        upstream.dials -= 1
        if not upstream.is_up:
            upstream.is_up = True
            parked, self._parked = self._parked, {}
            for waiting in parked:
                self.dial(waiting, now_s)
        pair.upstream_opened(now_s)

    def not_dialed(self, pair: ProxyPair, now_s: float) -> None:
        """There is no connection to be had at this address: the pair goes to the next one of its
        upstream, elsewhere where there is none, or waits for a return."""
        upstream = pair.broker
        if upstream is None:
            return
        if self._dialing[pair].go_on(now_s):
            self.to_dial.append(pair)
            return
        self._hang_up(pair)
        if upstream.is_up:
            upstream.is_up = False
            gate = self.guard.gate
            if isinstance(gate, ConnectGate):
                gate.peer_lost(now_s)
        upstream.probe_s = now_s + PROBE_S * (0.5 + self._draw())
        self.dial(pair, now_s)

    def no_descriptor(self, pair: ProxyPair, now_s: float) -> None:
        """This process cannot open a connection more."""
        self.counters.drop(Reason.DESCRIPTORS)
        pair.refuse(ReasonCode.SERVER_BUSY, self.guard.gate.retry_after_s(self._draw()), now_s)

    def _look_after_upstreams(self, now_s: float) -> list[ProxyPair]:
        """Probe, and give up on those whose patience is over; who dials for too long."""
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
        """Return those with something to send, which is about to leave."""
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for pair in dirty:
                pair.is_dirty = False
        return dirty

    def take_runnable(self) -> list[ProxyPair]:
        """Return those to be run; `queued` is theirs to unset."""
        runnable = self.runnable
        if runnable:
            self.runnable = []
        return runnable

    def turn(self, now_s: float) -> None:
        """After a slice of work: whoever waited for what was given back may go on."""
        if self.guard.has_work:
            self.guard.turn(now_s)

    def tick(self, now_s: float, heard_s: float | None = None) -> list[ProxyPair]:
        """Every 100 ms; returns the pairs whose dial took too long, to be given up.

        `heard_s`: until when whatever had come has been read; None: until now.
        """
        self._observe(now_s)
        silent_since_s = (now_s if heard_s is None else heard_s) - self.settings.connect_timeout_s
        while self._newcomers:
            pair = next(iter(self._newcomers))
            if pair.opened_s > silent_since_s:
                break
            handshakes = self.door.handshakes
            if handshakes is not None and handshakes.holds(pair.client.transport):
                self.shook_hands(pair.client, now_s)  # It waits for us.
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
