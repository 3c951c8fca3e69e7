"""A client of a broker in another process: a blocking socket, and packets."""

import socket
from typing import Any

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect, Packet
from flowguard.types import MQTT_5
from tests.interop.broker import PATIENCE_S, Broker


class Caller:
    """A client that is only bytes."""

    def __init__(
        self, broker: Broker, version: int = MQTT_5, client_id: str = "", **options: Any
    ) -> None:
        self.version = version
        self._sock = socket.create_connection((broker.host, broker.port), PATIENCE_S)
        self._decoder = PacketDecoder(1_000_000, version, "client")
        self.send(Connect(client_id or f"caller-{version}", version, **options))

    def send(self, *packets: Packet) -> None:
        self._sock.sendall(b"".join(encode(packet, self.version) for packet in packets))

    def read(self) -> Packet | None:
        """Return the next packet, or None if the broker has closed."""
        while (packet := self._decoder.next()) is None:
            data = self._sock.recv(65_536)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """The connection ends without a word."""
        self._sock.close()
