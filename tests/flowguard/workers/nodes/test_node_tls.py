"""TLS between nodes of a cluster: only nodes with a certificate of its authority are heard."""

import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from flowguard.broker.workers.node_tls import node_tls_of
from flowguard.errors import ConfigError
from flowguard.network_settings import ClusterSettings
from tests.flowguard.workers.clients import Machine, names, tcp
from tests.flowguard.workers.test_cluster import (
    KILLED,
    SHARDS,
    connect,
    is_here,
    is_ready,
    node,
    publish,
    received,
    shards_of,
    subscribe,
    two_nodes,
    wait_until,
)
from tests.support.authority import Authority, Pair
from tests.support.redis_server import ALWAYS, redis_server
from tests.torture.nodes import free_block

HOST = "127.0.0.1"


def settings_of(authority: Authority, pair: Pair) -> dict[str, str]:
    files = {"CERT": pair.cert, "KEY": pair.key, "CA": authority.cert}
    return {f"FLOWGUARD_CLUSTER__{name}": str(path) for name, path in files.items()}


@dataclass
class Secured:
    """Two nodes with one certificate."""

    first: Machine
    second: Machine
    authority: Authority
    pair: Pair
    folder: Path

    def ports(self) -> list[int]:
        """Return the ports of the shard of the first node: for links, and for clients."""
        name = self.first.get("/cluster")["node"]
        wait_until(lambda: len(shards_of(self.first, name)) == 1)
        port = int(name.rpartition(":")[2]) + 2 * shards_of(self.first, name)[0]
        return [port, port + 1]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    pair = authority.issue(HOST)
    with (
        redis_server(folder / "redis", ALWAYS) as redis,
        two_nodes(folder, redis, KILLED, settings_of(authority, pair)) as (first, second),
    ):
        yield Secured(first, second, authority, pair, folder)
        with suppress(ProcessLookupError):
            first.broker.process.kill()


@pytest.mark.slow
def test_stranger_gets_nothing_from_the_ports_of_nodes(secured: Secured) -> None:
    other = Authority(secured.folder, "other")
    expired = secured.authority.issue("expired", days=-1)
    trusting = ssl.create_default_context(cafile=str(secured.authority.cert))
    foreign = ssl.create_default_context(cafile=str(secured.authority.cert))
    pair = other.issue(HOST)
    foreign.load_cert_chain(pair.cert, pair.key)
    contexts = (None, trusting, foreign, secured.authority.client_context(expired))
    silent = [tcp((HOST, port)) for port in secured.ports()]
    for port in secured.ports():
        for context in contexts:
            answer = answer_of(port, context)
            assert not answer or answer[:1] == b"\x15", answer  # An alert of TLS.
    for sock in silent:
        with sock:
            assert sock.recv(1) == b""  # It has sent nothing in time.
    secured.first.broker.wait_for_log("connections to a cluster port closed")


def answer_of(port: int, context: ssl.SSLContext | None) -> bytes:
    with suppress(ssl.SSLError, ConnectionError), ExitStack() as opened:
        stream: socket.socket = opened.enter_context(tcp((HOST, port)))
        if context is not None:
            stream = opened.enter_context(context.wrap_socket(stream, server_hostname=HOST))
        stream.sendall(b"\0" * 64)
        return stream.recv(1_000)
    return b""


@pytest.mark.slow
def test_reload_replaces_the_certificate_of_a_node(secured: Secured) -> None:
    context = secured.authority.client_context(secured.pair)

    def serial() -> int:
        address = (HOST, secured.ports()[0])
        with context.wrap_socket(tcp(address), server_hostname=HOST) as stream:
            certificate = stream.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)

    assert serial() == secured.pair.serial
    new = secured.authority.issue(HOST)
    shutil.copy(new.cert, secured.pair.cert)
    shutil.copy(new.key, secured.pair.key)
    secured.first.broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: serial() == new.serial)


@pytest.mark.slow
def test_clients_links_and_take_over_work_with_tls(secured: Secured) -> None:
    first, second = secured.first, secured.second
    subscribers = []
    for running in (first, second):
        for shard in range(SHARDS):
            (name,) = names(shard, 1, f"all-{running.broker.port}")
            client, _ = connect(running, name, clean_start=True)
            subscribe(client, "t")
            subscribers.append((name, client))
        assert None not in running.get("/status")["workers"]  # One of them is at the other node.
    here = [shard for shard in range(SHARDS) if is_here(second, shard)]
    publishers = [
        connect(running, names(here[0], 1, f"from-{running.broker.port}")[0])[0]
        for running in (first, second)
    ]
    for number in range(20):
        publish(publishers[number % 2], number)
    for _, client in subscribers:
        assert sorted(received(client, 20)) == list(range(20))
        client.close()
    os.kill(first.broker.process.pid, signal.SIGKILL)
    for number in range(20, 30):
        publish(publishers[1], number)  # Waits until a living node has the other sessions.
    wait_until(lambda: is_ready(second, SHARDS))
    for name, _ in subscribers:
        client, connack = connect(second, name)
        assert connack.session_present
        found: set[int] = set()  # Those before may come again: their PUBACKs may be lost.
        while not found.issuperset(range(20, 30)):
            found.update(received(client, 1))
        client.close()
    for client in publishers:
        client.close()


@pytest.mark.slow
def test_log_names_the_settings_when_one_node_has_tls_and_one_has_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = settings_of(authority, authority.issue(HOST))
    ports = [free_block(2 * SHARDS), free_block(2 * SHARDS)]
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        node(tmp_path / "a", redis, ports[0], settings=settings) as first,
        node(tmp_path / "b", redis, ports[1]) as second,
    ):
        for running in (first, second):
            for event in ("connections to a cluster port closed", "connections to another node"):
                wait_until(lambda running=running, event=event: names_settings(running, event))


def names_settings(running: Machine, event: str) -> bool:
    lines = running.broker.log.read_text().splitlines()
    return any(event in line and "cluster.cert" in line for line in lines)


@pytest.mark.parametrize(
    ("signer", "host", "days", "why"),
    [
        ("authority", HOST, -1, "certificate has expired"),
        ("authority", "127.0.0.2", 30, "IP address mismatch"),
        ("other", HOST, 30, "certificate"),
    ],
)
def test_certificate_that_other_nodes_would_reject_ends_the_start(
    tmp_path: Path, signer: str, host: str, days: int, why: str
) -> None:
    authorities = {name: Authority(tmp_path, name) for name in ("authority", "other")}
    pair = authorities[signer].issue(host, days=days)
    files = {"cert": pair.cert, "key": pair.key, "ca": authorities["authority"].cert}
    cluster = ClusterSettings.model_validate({"address": f"{HOST}:7000", **files})
    with pytest.raises(ConfigError, match=rf"cluster\.cert .*would reject it: .*{why}"):
        node_tls_of(cluster)


def test_address_beyond_loopback_needs_tls_unless_plaintext_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="other machines reach its ports"):
        ClusterSettings(address="10.0.0.1:7000")
    with pytest.raises(ValidationError, match="go together"):
        ClusterSettings(address="10.0.0.1:7000", cert=tmp_path / "a", key=tmp_path / "b")
    assert ClusterSettings(address="10.0.0.1:7000", allow_plaintext=True).cert is None
    assert ClusterSettings(address="localhost:7000").cert is None
