"""Connections reach the worker that owns their session, over each kind of listener."""

import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from flowguard.broker.server import FAREWELL_S
from flowguard.codec.packets import Connack, Disconnect, Pingreq, Puback, Suback, Subscribe, Will
from flowguard.types import Publish, ReasonCode, SubscriptionOptions
from tests.flowguard.workers.clients import (
    WORKERS,
    Client,
    Machine,
    Stream,
    WebSocketStream,
    machine,
    names,
    owner,
    proxied,
    stopped,
    tcp,
    tls,
    unix,
    wait_until_ended,
)
from tests.interop.broker import PATIENCE_S
from tests.support.authority import Authority

pytestmark = pytest.mark.slow
LARGE = bytes(range(256)) * 2_000
"""A payload that no socket takes at once."""
CLIENTS = 3
CONFIG = """
[network]
allow_all_topics = true
allow_anonymous = true
cert = "{cert}"
key = "{key}"
listeners = [
    "127.0.0.1:0",
    {{address = "127.0.0.1:0", proxies = ["127.0.0.1"]}},
    "mqtts://127.0.0.1:0",
    "ws://127.0.0.1:0",
    "wss://127.0.0.1:0",
    "unix:{folder}/socket",
]
"""


def echo(client: Client, topic: str, payload: bytes) -> None:
    """Subscribe, publish to the own subscription, and receive the message."""
    client.send(Subscribe(1, ((topic, SubscriptionOptions(1)),)))
    assert isinstance(client.read(), Suback)
    client.send(Publish(topic, payload, 1, packet_id=2))
    packets = {type(packet): packet for packet in (client.read(), client.read())}
    assert isinstance(packets[Puback], Puback)
    message = packets[Publish]
    assert isinstance(message, Publish)
    assert message.payload == payload


@dataclass
class Endpoints:
    """A broker with a listener of each kind, and a context for TLS."""

    machine: Machine
    context: ssl.SSLContext
    socket: Path

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of the listeners: plain, proxy, TLS, WebSocket, WebSocket with TLS."""
        return self.machine.addresses


@pytest.fixture(scope="module")
def _endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    folder = tmp_path_factory.mktemp("endpoints")
    authority = Authority(folder)
    pair = authority.issue("127.0.0.1")
    config = folder / "broker.toml"
    config.write_text(CONFIG.format(folder=folder, cert=pair.cert, key=pair.key))
    with machine(folder, "--config", str(config), listen=False) as running:
        yield Endpoints(running, authority.client_context(), folder / "socket")


@pytest.fixture
def endpoints(_endpoints: Endpoints) -> Endpoints:
    """All tests have the same broker. No client of an earlier test is connected any more."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(_endpoints.machine.connected()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return _endpoints


def test_client_that_reads_nothing_leaves_no_socket_when_its_session_moves(
    endpoints: Endpoints,
) -> None:
    """The first test: no connection of another one is still being closed."""
    plain, _, _, web, _ = endpoints.addresses
    running = endpoints.machine
    before = running.descriptors_count()
    deaf = {name: deaf_subscriber(web, name) for i in range(WORKERS) for name in names(i, 6)}
    publisher = Client(tcp(plain), "publisher")
    publisher.accepted()
    for _ in range(100):
        publisher.send(Publish("t", bytes(100_000), 1, packet_id=1))
        assert isinstance(publisher.read(), Puback)
    publisher.close()
    for name in deaf:
        client = Client(tcp(plain), name)
        client.accepted()
        client.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while (now := running.descriptors_count()) > before:
        assert time.monotonic() < deadline_s, (before, now)
        time.sleep(0.1)
    for sock in deaf.values():
        sock.close()


def test_each_listener_passes_clients_on_to_the_owner_of_their_session(
    endpoints: Endpoints,
) -> None:
    plain, proxy, secure, web, secure_web = endpoints.addresses
    context = endpoints.context
    kinds: dict[str, Callable[[], Stream]] = {
        "plain": partial(tcp, plain),
        "proxy": partial(proxied, proxy),
        "tls": partial(tls, secure, context),
        "ws": lambda: WebSocketStream(tcp(web)),
        "wss": lambda: WebSocketStream(tls(secure_web, context)),
        "unix": partial(unix, endpoints.socket),
    }
    clients: list[Client] = []
    for kind, connect in kinds.items():
        for index in range(WORKERS):
            for name in names(index, CLIENTS, kind):
                client = Client(connect(), name)
                client.accepted()
                echo(client, name, LARGE)
                clients.append(client)
    assert endpoints.machine.connected() == [len(kinds) * CLIENTS] * WORKERS
    for client in clients:
        client.close()


def test_piped_client_hears_of_its_end_and_its_worker_of_the_end_of_the_client(
    endpoints: Endpoints,
) -> None:
    plain, _, secure, *_ = endpoints.addresses
    context = endpoints.context
    for index in range(WORKERS):
        for name in names(index, CLIENTS):
            first = Client(tls(secure, context), name)
            first.accepted()
            second = Client(tcp(plain), name)
            second.accepted()
            goodbye = first.read()
            assert isinstance(goodbye, Disconnect)
            assert goodbye.reason_code == ReasonCode.SESSION_TAKEN_OVER
            assert first.read() is None
            first.close()
            watcher = Client(tcp(plain), names(index, 1, "watcher")[0])
            watcher.accepted()
            watcher.send(Subscribe(1, (("will", SubscriptionOptions(0)),)))
            assert isinstance(watcher.read(), Suback)
            third = Client(tls(secure, context), name, will=Will("will", b"x"))
            third.accepted()
            third.close()
            assert isinstance(watcher.read(), Publish)
            watcher.close()
            second.close()


def test_assigned_client_id_belongs_to_the_worker_that_accepted(
    endpoints: Endpoints,
) -> None:
    running = endpoints.machine
    clients = [Client(tcp(running.addresses[0]), "") for _ in range(8)]
    owners = [0] * WORKERS
    for client in clients:
        name = client.accepted().properties.assigned_client_identifier
        assert name is not None
        owners[owner(name)] += 1
    assert running.connected() == owners
    for client in clients:
        client.close()


def test_connection_waits_for_an_owner_that_does_not_run(
    endpoints: Endpoints,
) -> None:
    running = endpoints.machine
    (name,), (other,) = names(0, 1), names(1, 1)
    with stopped(running.pid(0)):
        # The other worker accepts it, and reads CONNECT and what follows it.
        client = Client(tcp(running.addresses[0]), name, Publish("t", LARGE[:5_000], 0))
        client.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
        witness = Client(tcp(running.addresses[0]), other)
        witness.accepted()
    client.accepted()
    assert isinstance(client.read(), Suback)
    assert running.connected() == [1, 1]
    client.close()
    witness.close()


def test_connect_is_rejected_when_its_owner_does_not_start_in_time(tmp_path: Path) -> None:
    settings = {"FLOWGUARD_FLOW__CONNECT_PATIENCE_S": "0.2"}
    with machine(tmp_path, "--store", "memory", environment=settings) as running:
        (name,) = names(0, 1)
        with stopped(running.broker.process.pid):  # It starts no worker.
            os.kill(running.pid(0), signal.SIGKILL)
            wait_until_ended([running.pid(0)])
            client = Client(tcp(running.addresses[0]), name)
            connack = client.read()
            assert isinstance(connack, Connack)
            assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
            assert client.read() is None
            client.close()


def test_owner_knows_the_certificate_of_its_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    rules = tmp_path / "acl.toml"
    rules.write_text('[roles.sensor]\nusers = ["sensor-7"]\nsubscribe = ["t"]\n')
    arguments = ("--cert", str(pair.cert), "--key", str(pair.key), "--acl", str(rules))
    context = authority.client_context(authority.issue("sensor-7"))
    with machine(
        tmp_path,
        *("--listen", "mqtts://127.0.0.1:0", "--client-ca", str(authority.cert), *arguments),
    ) as running:
        for index in range(WORKERS):
            for name in names(index, CLIENTS):
                client = Client(tls(running.addresses[0], context), name)
                client.accepted()
                client.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
                suback = client.read()
                assert isinstance(suback, Suback)
                assert suback.reason_codes == (1,)
                client.close()


def test_clients_that_reset_behind_connect_hold_no_other_client_up(
    endpoints: Endpoints,
) -> None:
    plain, _, _, web, _ = endpoints.addresses
    for index in range(WORKERS):
        for name in names(index, 18, "reset"):
            sock = tcp(web)
            client = Client(WebSocketStream(sock), name, Pingreq())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    for index in range(WORKERS):
        for name in names(index, 3):
            client = Client(tcp(plain), name)
            client.accepted()
            client.close()


def deaf_subscriber(address: tuple[str, int], name: str) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(PATIENCE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(address)
    client = Client(WebSocketStream(sock), name, Subscribe(1, (("t", SubscriptionOptions(0)),)))
    client.accepted()
    assert isinstance(client.read(), Suback)
    return sock


def test_clients_of_websocket_reach_the_maximum_number_of_clients(tmp_path: Path) -> None:
    settings = {"FLOWGUARD_NODE__CONNECTIONS_MAX": "200"}
    arguments = ("--store", "memory", "--listen", "ws://127.0.0.1:0")
    with machine(tmp_path, *arguments, listen=False, environment=settings) as running:
        (web,) = running.addresses
        clients = []
        for index in range(WORKERS):
            for name in names(index, 100):
                clients.append(Client(WebSocketStream(tcp(web)), name))
                clients[-1].accepted()
        for index in range(WORKERS):
            client = Client(WebSocketStream(tcp(web)), names(index, 1, "surplus")[0])
            assert_quota_exceeded(client)
            client.close()
        for client in clients:
            client.close()


def test_client_beyond_the_limit_of_its_listener_gets_connack(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(
        "[network]\nallow_all_topics = true\nallow_anonymous = true\n"
        'listeners = [{address = "127.0.0.1:0", connections_max = 2}]\n'
    )
    arguments = ("--store", "memory", "--config", str(config))
    with machine(tmp_path, *arguments, listen=False) as running:
        assert_second_client_is_rejected(running)


def assert_second_client_is_rejected(running: Machine) -> None:
    """The limit is 2, so each worker may have one client."""
    name, surplus = names(0, 2)
    first = Client(tcp(running.addresses[0]), name)
    first.accepted()
    second = Client(tcp(running.addresses[0]), surplus)
    assert_quota_exceeded(second)
    first.close()
    second.close()


def assert_quota_exceeded(client: Client) -> None:
    connack = client.read()
    assert isinstance(connack, Connack)
    assert connack.reason_code == ReasonCode.QUOTA_EXCEEDED
    assert client.read() is None


def test_drain_leaves_the_pipe_of_a_client_open_while_its_owner_drains(tmp_path: Path) -> None:
    settings = {"FLOWGUARD_NODE__DRAIN_S": "20"}
    arguments = ("--store", "memory", "--listen", "ws://127.0.0.1:0")
    with machine(tmp_path, *arguments, listen=False, environment=settings) as running:
        (name,) = names(0, 1)
        with stopped(running.pid(0)):  # So the other worker accepts the client.
            client = Client(WebSocketStream(tcp(running.addresses[0])), name)
        client.accepted()
        with stopped(running.pid(0)):
            running.broker.process.send_signal(signal.SIGTERM)
            running.broker.wait_for_log("draining")
            time.sleep(FAREWELL_S + 1)
        goodbye = client.read()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        assert client.read() is None
        client.close()
        assert running.broker.process.wait(PATIENCE_S) == 0


def test_client_beyond_the_limit_of_its_role_gets_connack(tmp_path: Path) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text("[roles.guest]\nanonymous = true\nconnections_max = 2\n")
    with machine(tmp_path, "--store", "memory", "--acl", str(rules)) as running:
        assert_second_client_is_rejected(running)
