"""The proxy without sockets: any interleaving of packets, splits, delays and ends.

1. The upstream receives exactly what its client sent, as far as it was admitted: packets that count
   in their order, whole, and nothing else; PINGREQ and acknowledgements may pass those that wait.
2. The client receives exactly what the upstream said, for as long as it listens. Its end comes to
   the upstream behind all that it has sent.
3. No more is in process than windows and the gate allow; what is held is bounded.
4. When all have gone, every count is zero.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker_adapter.proxy.outgoing import OUT_BYTES
from broker_adapter.proxy.states import PairState
from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Subscribe,
    Unsubscribe,
)
from flowguard.config import KIB, FlowSettings
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions
from tests.broker_adapter.proxy_stage import ProxyClient, ProxyStage, acknowledgement

PICK = st.integers(0, 1_000)
LOOKAHEAD = 2 * KIB
CHUNK = 1_000
COUNTED = (Publish, Subscribe, Unsubscribe)
PATIENCE_S = 3.0


class Proxying(RuleBasedStateMachine):
    """Clients and an upstream that do what they like."""

    @initialize(
        window_max=st.sampled_from([1, 3, 100]),
        unfinished_max=st.sampled_from([2, 4_096]),
        connects=st.sampled_from([1, 2, 50]),
        buffered=st.sampled_from([0, 2, 50]),
        floor=st.sampled_from([0.1, 1.0]),
        upstreams=st.sampled_from([1, 3]),
        identifiers=st.sampled_from([2, 65_535]),
    )
    def begin(
        self,
        window_max: int,
        unfinished_max: int,
        connects: int,
        buffered: int,
        floor: float,
        upstreams: int,
        identifiers: int,
    ) -> None:
        """`identifiers`: number of packet identifiers that a client uses, in use or not."""
        settings = FlowSettings(
            window_max=window_max,
            window_floor=min(floor, window_max),
            unfinished_max=unfinished_max,
            connects_in_process_max=connects,
            connect_buffer_max=buffered,
            connect_patience_s=PATIENCE_S,
        )
        self.connects = connects
        self.window_max = window_max
        self.identifiers = identifiers
        self.stage = ProxyStage(settings, LOOKAHEAD, upstreams)
        self.clients: list[ProxyClient] = []
        self.unsent: dict[ProxyClient, bytearray] = {}
        self.packets: dict[ProxyClient, int] = {}
        """Number of packets with an identifier that each client has sent."""
        self.counted: dict[ProxyClient, list[bytes]] = {}
        self.lane: dict[ProxyClient, list[bytes]] = {}
        self.acknowledged: dict[ProxyClient, int] = {}

    def pick(self, number: int, *states: PairState) -> ProxyClient | None:
        found = [client for client in self.clients if client.pair.state in states]
        return found[number % len(found)] if found else None

    # --- clients -----------------------------------------------------------------------------

    @rule(version=st.sampled_from([MQTT_311, MQTT_5]), name=st.sampled_from(["", "a", "b"]))
    def a_client_connects(self, version: int, name: str) -> None:
        client = self.stage.open(version, name)
        self.clients.append(client)
        self.unsent[client] = bytearray(encode(Connect(name, version), version))
        self.counted[client], self.lane[client] = [], []
        self.packets[client] = self.acknowledged[client] = 0

    @rule(version=st.sampled_from([MQTT_311, MQTT_5]))
    def a_client_is_let_in(self, version: int) -> None:
        """Admit a client if a slot is free, so that most events happen to clients."""
        self.a_client_connects(version, "")
        client = self.clients[-1]
        connect = bytes(self.unsent[client])
        self.unsent[client].clear()
        client.send_bytes(connect)
        if client.pair.state is PairState.CONNECTING and self.stage.takes:
            client.answer(Connack(False, 0))

    @rule(pick=PICK, qos=st.lists(st.integers(0, 2), min_size=2, max_size=9), ping=st.booleans())
    def it_publishes_many_at_once(self, pick: int, qos: list[int], ping: bool) -> None:
        client = self.pick(pick, PairState.CONNECTED)
        if client is not None and not self.unsent[client] and client.pair.wants_client:
            for number in qos:
                self._publish(client, number, 10)
            if ping:
                self._write(client, Pingreq())
            data = bytes(self.unsent[client])
            self.unsent[client].clear()
            client.send_bytes(data)

    def _write(self, client: ProxyClient, packet: Packet) -> None:
        data = encode(packet, client.version)
        self.unsent[client] += data
        (self.counted if isinstance(packet, COUNTED) else self.lane)[client].append(data)

    @rule(pick=PICK, qos=st.integers(0, 2), size=st.sampled_from([0, 10, 700, 3_000, 70_000]))
    def it_publishes_one(self, pick: int, qos: int, size: int) -> None:
        client = self.pick(pick, PairState.CONNECTED, PairState.CONNECTING, PairState.OFFERED)
        if client is not None:
            self._publish(client, qos, size)

    def _publish(self, client: ProxyClient, qos: int, size: int) -> None:
        number = self._next_id(client)
        payload = b"%d" % self.packets[client] + b"x" * size
        self._write(client, Publish("a/b", payload, qos, packet_id=number if qos else 0))

    def _next_id(self, client: ProxyClient) -> int:
        self.packets[client] += 1
        return 1 + self.packets[client] % self.identifiers

    @rule(pick=PICK, subscribes=st.booleans())
    def it_subscribes_or_not(self, pick: int, subscribes: bool) -> None:
        client = self.pick(pick, PairState.CONNECTED)
        if client is not None:
            number = self._next_id(client)
            options = SubscriptionOptions(1)
            self._write(
                client,
                Subscribe(number, (("a", options),)) if subscribes else Unsubscribe(number, ("a",)),
            )

    @rule(pick=PICK, ping=st.booleans())
    def it_pings_or_acknowledges(self, pick: int, ping: bool) -> None:
        client = self.pick(pick, PairState.CONNECTED)
        if client is not None:
            self._write(client, Pingreq() if ping else Puback(77))

    @rule(pick=PICK, size=st.sampled_from([1, 2, 30, CHUNK]), pieces=st.integers(1, 8))
    def its_bytes_arrive(self, pick: int, size: int, pieces: int) -> None:
        client = self.pick(pick, *set(PairState) - {PairState.ENDED})
        if client is None:
            return
        for _ in range(pieces):
            unsent = self.unsent[client]
            if unsent and client.pair.wants_client:
                data = bytes(unsent[:size])
                del unsent[:size]
                client.send_bytes(data)

    @rule(pick=PICK, hears=st.booleans())
    def it_hangs_up(self, pick: int, hears: bool) -> None:
        client = self.pick(pick, *set(PairState) - {PairState.ENDED})
        if client is not None and not client.hung_up:
            self.unsent[client].clear()
            client.hang_up(hears=hears)

    # --- the upstream ------------------------------------------------------------------------

    @rule(pick=PICK, reason=st.sampled_from([0, 0, 0, 0, 0x89]))
    def it_answers_a_connect(self, pick: int, reason: int) -> None:
        client = self.pick(pick, PairState.CONNECTING)
        if client is not None and client.packets_at_upstream():
            client.answer(Connack(False, reason))

    @rule(pick=PICK, count=st.integers(1, 5), split=st.integers(1, 9))
    def it_acknowledges(self, pick: int, count: int, split: int) -> None:
        client = self.pick(pick, PairState.CONNECTED)
        if client is None:
            return
        owed = [p for p in map(acknowledgement, client.packets_at_upstream()[1:]) if p is not None]
        done = self.acknowledged[client]
        data = b"".join(encode(p, client.version) for p in owed[done : done + count])
        self.acknowledged[client] = min(len(owed), done + count)
        for at in range(0, len(data), split):
            client.answer_bytes(data[at : at + split])

    @rule(pick=PICK, size=st.sampled_from([0, 5_000]))
    def it_says_something_else(self, pick: int, size: int) -> None:
        client = self.pick(pick, PairState.CONNECTED)
        if client is not None:
            client.answer(Publish("to/you", b"y" * size), Pingresp())

    @rule(pick=PICK)
    def it_hears_an_end_and_ends(self, pick: int) -> None:
        told = [client for client in self.clients if client.end_passed and not client.pair.ended]
        if told:
            told[pick % len(told)].upstream_ends()

    @rule()
    def it_takes_nothing_for_a_while(self) -> None:
        self.stage.takes = False

    @rule()
    def clients_read_nothing_for_a_while(self) -> None:
        self.stage.takes_client = False

    @rule()
    def everybody_takes_again(self) -> None:
        self.stage.drain_upstream()

    @rule()
    def a_slice_begins(self) -> None:
        self.stage.in_slice = True

    @rule()
    def a_slice_ends(self) -> None:
        self.stage.in_slice = False
        self.stage.settle()

    @rule()
    def it_falls(self) -> None:
        self.stage.fall()

    @rule()
    def all_are_back(self) -> None:
        self.stage.is_up = True
        self.stage.fallen.clear()

    @rule(pick=PICK)
    def one_of_several_falls(self, pick: int) -> None:
        self.stage.fall_alone(self.stage.upstreams[pick % len(self.stage.upstreams)])

    @rule(pick=PICK)
    def one_more_says_until_its_client_has_enough(self, pick: int) -> None:
        """Bytes that a socket does not take are bounded, because the upstream is not read any
        more."""
        client = self.pick(pick, PairState.CONNECTED)
        while client is not None and client.pair.wants_upstream and not self.stage.takes_client:
            client.answer(Publish("to/you", b"z" * 60_000))

    @rule(after_s=st.sampled_from([0.1, 0.1, 0.5, 1.2 * PATIENCE_S]))
    def time_passes(self, after_s: float) -> None:
        self.stage.advance(after_s)

    # --- what has to hold --------------------------------------------------------------------

    @invariant()
    def the_upstream_gets_what_was_sent_in_order(self) -> None:
        for client in self.__dict__.get("clients", ()):
            connect = encode(Connect(client.client_id, client.version), client.version)
            at_upstream = bytes(client.at_upstream)
            if not client.is_dialed:
                assert not at_upstream
                continue
            assert connect.startswith(at_upstream[: len(connect)])
            rest = at_upstream[len(connect) :]
            counted, lane = list(self.counted[client]), list(self.lane[client])
            while rest:
                for queue in (counted, lane):
                    if queue and (rest.startswith(queue[0]) or queue[0].startswith(rest)):
                        rest = rest[len(queue.pop(0)) :]
                        break
                else:
                    raise AssertionError(rest)

    @invariant()
    def what_the_upstream_has_of_qos_0_is_done(self) -> None:
        if hasattr(self, "stage") and self.stage.takes and not self.stage.in_slice:
            for client in self.clients:
                is_cut = client.hung_up and client.pair._from_client.rest_bytes
                if not self.unsent[client] and not is_cut:
                    assert not client.pair._unacknowledged

    @invariant()
    def the_client_gets_what_the_upstream_said(self) -> None:
        for client in self.__dict__.get("clients", ()):
            got, said = bytes(client.got), bytes(client.said_by_upstream)
            if client.is_dialed and client.hears:
                assert got + b"".join(client.pair.to_client._pieces) == said or not said
                assert said.startswith(got) or not said

    @invariant()
    def bounds_are_kept(self) -> None:
        if not hasattr(self, "stage"):
            return
        core = self.stage.core
        assert core.guard.gate.in_process <= max(4, self.connects)
        held_bytes = 0
        for client in self.clients:
            pair = client.pair
            if pair.window is not None and pair.state is PairState.CONNECTED:
                assert pair.window.in_process <= max(self.window_max, 2)
            assert pair.held_bytes <= LOOKAHEAD + CHUNK
            assert pair.to_upstream.size_bytes <= OUT_BYTES + LOOKAHEAD + 2 * 70_100
            assert pair.to_client.size_bytes <= OUT_BYTES + 60_100 + 9 * 10
            held_bytes += pair.held_bytes + pair.to_upstream.size_bytes
            held_bytes += pair.to_client.size_bytes
        assert self.stage.in_slice or core.held_bytes >= held_bytes
        assert len(core.pairs) == sum(not client.pair.ended for client in self.clients)

    @invariant()
    def who_waits_waits_for_something(self) -> None:
        if hasattr(self, "stage") and not self.stage.in_slice:
            waiting = [c for c in self.clients if c.pair.held_count and c.pair.window is not None]
            assert not waiting or self.stage.core.in_process_count

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        stage.in_slice = False
        for client in self.clients:
            if not client.pair.ended:
                client.pair.end(stage.now_s)
        stage.drain_upstream()
        stage.advance(0.1)
        core = stage.core
        window = core.guard.window
        assert (window.in_process, window.in_process_bytes, window.active) == (0, 0, 0)
        assert window.permits == 0
        assert core.in_process_count == core.held_bytes == 0
        assert core.guard.gate.in_process == core.guard.gate.buffered == 0
        for upstream in core.upstreams:
            assert (upstream.pairs_count, upstream.dials) == (0, 0)
        for place in (core.pairs, core.runnable, core.to_dial, core._dialing, core._parked):
            assert not place
        assert not core._leaving
