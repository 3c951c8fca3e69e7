"""Clients of the drill: a fleet that stays connected, and devices that publish or misbehave."""

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import trio

from flowguard.address import Scheme
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Packet, Suback, Subscribe
from flowguard.types import MQTT_5, NO_PROPERTIES, Properties, Publish, SubscriptionOptions
from loadgen.storm.access import ClientAccess, User
from loadgen.storm.client import Client
from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, RetryPolicy, Target
from tests.support.patience import HANG_S

HOST = "127.0.0.1"
EVER_S = 3_600.0
KEPT = Properties(session_expiry_interval=86_400)


class Fleet:
    """Clients `meter-0000` and so on: they connect over TLS, stay, and reconnect."""

    def __init__(self, port: int, clients: int, ca: Path, user: User) -> None:
        access = ClientAccess(Scheme.MQTTS, cafile=str(ca), users=(user,))
        address = (HOST, port)
        target = Target(HOST, port, MQTT_5, socket.AF_INET, address, access)
        plan = CrowdPlan(
            clients, RetryPolicy(first_s=0.5, max_s=4.0), 30.0, EVER_S, EVER_S, returns=True
        )
        self._crowd = Crowd(target, plan, trio.current_time)
        self._crowd.clients = [
            Client(self._crowd, f"meter-{number:04}", user) for number in range(clients)
        ]
        self._thread = threading.Thread(target=trio.run, args=(self._crowd.run,))

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._crowd.stop()
        self._thread.join()


class Line:
    """One connection: packets out, packets in."""

    def __init__(
        self, port: int, context: ssl.SSLContext | None, connect: Connect, source: str = HOST
    ) -> None:
        plain = socket.create_connection((HOST, port), HANG_S, source_address=(source, 0))
        self._sock = plain if context is None else context.wrap_socket(plain, server_hostname=HOST)
        self._decoder = PacketDecoder(1_000_000, MQTT_5, "client")
        self.send(connect)

    def send(self, *packets: Packet) -> None:
        self._sock.sendall(b"".join(encode(packet, MQTT_5) for packet in packets))

    def read(self, timeout_s: float = HANG_S) -> Packet | None:
        """Return the next packet, or None at the end. Raises TimeoutError."""
        self._sock.settimeout(timeout_s)
        while (packet := self._decoder.next()) is None:
            data = self._sock.recv(65_536)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    def close(self) -> None:
        self._sock.close()


class Device:
    """A client in a thread: it connects, publishes, and connects again after each end."""

    def __init__(
        self,
        port: int,
        context: ssl.SSLContext | None,
        client_id: str,
        user: User,
        *,
        topic: str = "",
        every_s: float = 0.3,
        source: str = HOST,
    ) -> None:
        """Without a topic it only stays; it reconnects `every_s` after the end of a connection."""
        password = None if user.password is None else user.password.encode()
        connect = Connect(
            client_id, MQTT_5, username=user.name, password=password, keep_alive_s=600
        )
        self._open: Callable[[], Line] = lambda: Line(port, context, connect, source)
        self._topic = topic
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Device":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._connected()
            except OSError:  # No broker listens now, or it has ended the connection.
                pass
            self._stopped.wait(self._every_s)

    def _connected(self) -> None:
        line = self._open()
        try:
            answer = line.read()
            number = 0
            while isinstance(answer, Connack) and not answer.reason_code:
                if self._topic:
                    number = number % 65_000 + 1
                    line.send(Publish(self._topic, b"21.5", 1, packet_id=number))
                if not self._goes_on(line):
                    return
        finally:
            line.close()

    def _goes_on(self, line: Line) -> bool:
        """Read until it is time for the next message; return False at the end."""
        try:
            while (packet := line.read(self._every_s)) is not None:
                if isinstance(packet, Disconnect):
                    return False
                if self._stopped.is_set():
                    return False
                if self._topic:
                    self._stopped.wait(self._every_s)
                    return not self._stopped.is_set()
        except TimeoutError:
            return not self._stopped.is_set()
        return False


def leave_subscription(
    port: int, context: ssl.SSLContext | None, client_id: str, user: User, topic: str
) -> None:
    """Make a session with a subscription, and disconnect; messages then wait for it."""
    password = None if user.password is None else user.password.encode()
    connect = Connect(client_id, MQTT_5, username=user.name, password=password, properties=KEPT)
    line = Line(port, context, connect)
    connack = line.read()
    assert isinstance(connack, Connack), connack
    assert not connack.reason_code, connack
    line.send(Subscribe(1, ((topic, SubscriptionOptions(1)),)))
    answer = line.read()
    assert isinstance(answer, Suback), answer
    assert answer.reason_codes == (1,)
    line.send(Disconnect(properties=NO_PROPERTIES))
    line.close()
