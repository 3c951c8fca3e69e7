"""A stage for the proxy: pairs without sockets, a script for an upstream, a number for time.

The upstream acknowledges when the test calls for it; both sides' bytes arrive in any pieces.
"""

from dataclasses import dataclass, field

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.frames import FrameSplitter
from broker_adapter.proxy.pair import ProxyPair
from broker_adapter.proxy.states import PairState
from broker_adapter.proxy.upstream import Place, Upstream
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet, Puback, Pubrec, Suback, Subscribe
from flowguard.config import KIB, MIB, FlowSettings
from flowguard.types import MQTT_5, Publish

MEMORY_BYTES = 64 * MIB
SOCKET_BYTES = 300
"""Maximum number of bytes that a socket takes at once."""


@dataclass(eq=False)
class ProxyClient:
    """A client, its pair, and what the upstream has got of it."""

    stage: "ProxyStage"
    pair: ProxyPair
    version: int
    client_id: str
    sent: bytearray = field(default_factory=bytearray)
    """All that the client has sent."""
    got: bytearray = field(default_factory=bytearray)
    """All that the client has received."""
    at_upstream: bytearray = field(default_factory=bytearray)
    """All that the upstream has received of it."""
    said_by_upstream: bytearray = field(default_factory=bytearray)
    is_dialed: bool = False
    hung_up: bool = False
    hears: bool = True
    """False: its socket is closed, and whatever is sent to it fails."""
    end_passed: bool = False
    """The upstream has been told that it sends no more."""

    def send(self, *packets: Packet) -> None:
        """All packets in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.sent += data
        self.pair.client_data(data, self.stage.now_s)
        self.stage.settle()

    def hang_up(self, *, hears: bool = True) -> None:
        """The client sends no more; if `hears`, it has closed only that half."""
        self.hung_up, self.hears = True, hears
        self.pair.client_ended(self.stage.now_s)
        self.stage.settle()

    def answer(self, *packets: Packet) -> None:
        """The upstream says this."""
        self.answer_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def answer_bytes(self, data: bytes) -> None:
        if not self.pair.ended:
            self.said_by_upstream += data
            self.pair.upstream_data(data, self.stage.now_s)
            self.stage.settle()

    def upstream_ends(self) -> None:
        """The upstream closes its connection."""
        self.pair.end(self.stage.now_s)
        self.stage.settle()

    def packets_at_upstream(self) -> list[Packet]:
        """All complete packets that the upstream has received, CONNECT included."""
        return self._decoded(self.at_upstream, "server")

    def packets_got(self) -> list[Packet]:
        return self._decoded(self.got, "client")

    def _decoded(self, data: bytearray, role: str) -> list[Packet]:
        version = self.version if role == "client" else 0
        decoder = PacketDecoder(MIB, version, role=role)  # type: ignore[arg-type]
        decoder.feed(bytes(data))
        found = []
        while (packet := decoder.next()) is not None:
            found.append(packet)
        return found


class ProxyStage:
    """A core, its clients, and an upstream."""

    def __init__(
        self,
        settings: FlowSettings | None = None,
        lookahead_bytes: int = 4 * KIB,
        upstreams: int = 1,
        addresses: int = 1,
        *,
        half_closes: bool = True,
    ) -> None:
        """`addresses`: of each upstream's name; `half_closes`: they hear one that ends, and are
        heard."""
        settings = settings or FlowSettings()
        if settings.unfinished_bytes_max is None:
            settings = settings.model_copy(update={"unfinished_bytes_max": MEMORY_BYTES // 4})
        self.now_s = 1_000.0
        self.half_closes = half_closes
        self.upstreams = [
            Upstream(f"u{number}", [(0, (f"u{number}", port)) for port in range(1, addresses + 1)])
            for number in range(upstreams)
        ]
        self.core = ProxyCore(
            settings,
            MEMORY_BYTES,
            self.upstreams,
            draw=lambda: 0.5,
            lookahead_bytes=lookahead_bytes,
        )
        self.clients: dict[ProxyPair, ProxyClient] = {}
        self.is_up = True
        self.takes = True
        """False: the upstream's sockets take nothing."""
        self.takes_client = True
        """False: the clients' take nothing."""
        self.fallen: set[Upstream] = set()
        """Upstreams that are not there, while others are."""
        self.silent: set[Place] = set()
        """Addresses without a listener."""
        self.lost: set[Place] = set()
        """Addresses that swallow whatever is sent there."""
        self.dialed: list[Place] = []
        """Every address that was dialed."""
        self.dials = 0
        self.in_slice = False
        """True if several events happen before the next turn, as those of one poll."""

    def open(self, version: int = MQTT_5, client_id: str = "") -> ProxyClient:
        pair = self.core.opened(None, self.now_s).pair
        client = self.clients[pair] = ProxyClient(self, pair, version, client_id)
        return client

    def connect(self, version: int = MQTT_5, client_id: str = "") -> ProxyClient:
        """A client that the upstream has accepted."""
        client = self.open(version, client_id)
        client.send(Connect(client_id, version))
        assert client.is_dialed, client.pair.state
        client.answer(Connack(False, 0))
        assert client.pair.state is PairState.CONNECTED
        return client

    def settle(self) -> None:
        """Until nothing moves."""
        if self.in_slice:
            return
        core = self.core
        self._turn()
        while core.to_dial or core.dirty:
            dialing, core.to_dial = core.to_dial, []
            for pair in dialing:
                self._dial(pair)
            for pair in core.take_dirty():
                self._carry(self.clients[pair])
            self._turn()

    def _turn(self) -> None:
        core = self.core
        core.turn(self.now_s)
        while runnable := core.take_runnable():
            for pair in runnable:
                pair.queued = False
                if not pair.ended:
                    pair.run(self.now_s)
            core.turn(self.now_s)

    def _dial(self, pair: ProxyPair) -> None:
        upstream = pair.broker
        if upstream is None:
            return  # It has ended meanwhile.
        self.dials += 1
        place = self.core.place_of(pair)
        self.dialed.append(place)
        if place in self.lost:
            return
        if self.is_up and upstream not in self.fallen and place not in self.silent:
            self.clients[pair].is_dialed = True
            self.core.dialed(pair, self.now_s)
        else:
            self.core.not_dialed(pair, self.now_s)

    def _carry(self, client: ProxyClient) -> None:
        pair = client.pair
        if self.takes_client and pair.to_client.size_bytes:
            if client.hears:
                client.got += pair.to_client.take()
                pair.progressed(self.now_s)
            else:
                pair.client_deafened(self.now_s)
        while pair.to_upstream.size_bytes and self.takes:
            data = pair.to_upstream.take()
            client.at_upstream += data[:SOCKET_BYTES]
            pair.to_upstream.put_back(data[SOCKET_BYTES:])
            pair.sent_upstream(min(len(data), SOCKET_BYTES), self.now_s)
            pair.progressed(self.now_s)
        if pair.pass_end(self.now_s, half_closes=self.half_closes):
            assert not client.end_passed
            client.end_passed = True
            kept_bytes = len(pair._from_client.kept)
            assert len(client.at_upstream) + kept_bytes == len(client.sent), "all that it has sent"
        pair.weigh()

    def drain_upstream(self) -> None:
        """All sockets take what waits for them."""
        self.takes = self.takes_client = True
        for client in list(self.clients.values()):
            self._carry(client)
        self.settle()

    def advance(self, seconds: float) -> None:
        """Let time pass, tick by tick."""
        for _ in range(max(1, round(seconds / 0.1))):
            self.now_s += 0.1
            for pair in self.core.tick(self.now_s):
                self.core.not_dialed(pair, self.now_s)
            self.settle()

    def fall_alone(self, upstream: Upstream) -> None:
        """One of several is killed."""
        self.fallen.add(upstream)
        for client in list(self.clients.values()):
            if client.is_dialed and client.pair.broker is upstream:
                client.pair.end(self.now_s)
        self.settle()

    def fall(self) -> None:
        """The upstream is killed: every connection ends, and no new one is to be had."""
        self.is_up = False
        for client in list(self.clients.values()):
            if client.is_dialed and not client.pair.ended:
                client.pair.end(self.now_s)
        self.settle()


def acknowledgement(packet: Packet) -> Packet | None:
    """Return the answer of an upstream, or None if it has none."""
    if isinstance(packet, Publish) and packet.qos:
        return (Puback if packet.qos == 1 else Pubrec)(packet.packet_id)
    if isinstance(packet, Subscribe):
        return Suback(packet.packet_id, (0,) * len(packet.filters))
    return None


__all__ = ["FrameSplitter", "ProxyClient", "ProxyStage", "acknowledgement"]
