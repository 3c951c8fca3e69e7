"""A client that reads and acknowledges as fast as it can, on a blocking socket."""

import socket
from collections.abc import Iterator
from typing import Final

from benchmarks.brokers import HOST
from flowguard.codec import Connack, Connect, Disconnect, Packet, Suback, Subscribe, encode
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import puback_frame
from flowguard.types import MQTT_5, Properties, Publish, SubscriptionOptions

READ_BYTES: Final = 64 * 1024
PACKET_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 30.0
EXPIRY_S: Final = 3_600


class Client:
    """MQTT 5.0, a durable session; raises `OSError` where the broker says no or nothing."""

    def __init__(self, port: int, client_id: str, receive_maximum: int | None = None) -> None:
        self._decoder = PacketDecoder(PACKET_BYTES_MAX, MQTT_5, role="client")
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        properties = Properties(session_expiry_interval=EXPIRY_S, receive_maximum=receive_maximum)
        self.send(Connect(client_id, clean_start=False, properties=properties))
        connack = next(self.packets())
        if not isinstance(connack, Connack) or connack.reason_code:
            raise ConnectionRefusedError(f"{client_id} was told {connack}")

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(encode(packet, MQTT_5) for packet in packets))

    def packets(self) -> Iterator[Packet]:
        """What comes, for ever; what was read together is acknowledged together."""
        while True:
            pubacks = []
            while (packet := self._decoder.next()) is not None:
                if isinstance(packet, Publish) and packet.qos:
                    pubacks.append(puback_frame(packet.packet_id))
                yield packet
            self._socket.sendall(b"".join(pubacks))
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._decoder.feed(data)

    def subscribe(self, filter: str) -> None:
        self.send(Subscribe(1, ((filter, SubscriptionOptions(qos=1)),)))
        assert isinstance(next(self.packets()), Suback)

    def leave(self) -> None:
        """The session stays."""
        self.send(Disconnect())
        self._socket.close()
