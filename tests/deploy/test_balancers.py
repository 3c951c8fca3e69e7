"""The files for HAProxy and nginx, with the programs themselves in front of a real cluster."""

import csv
import re
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.brokers import free_ports
from flowguard.codec.packets import Connack, Pingreq, Pingresp
from flowguard.types import ReasonCode
from tests.deploy.unpacked_image import ROOT
from tests.flowguard.workers.clients import Client, Machine, machine, names, stopped, tcp, tls, unix
from tests.interop.broker import PATIENCE_S
from tests.support.authority import Authority
from tests.support.redis_server import ALWAYS, needs_redis, redis_server
from tests.torture.nodes import free_block

pytestmark = [pytest.mark.peers, pytest.mark.slow]
HOST = "127.0.0.1"
SHARDS = 2
NODES = ("node-1", "node-2")
NODE_PORTS = ("1883", "8883", "9883")
"""Ports of a node as the files name them: MQTT, MQTT over TLS, HTTP."""
HAPROXY = ("haproxy.cfg", "tls.cfg", "plain.cfg")


@dataclass
class Setup:
    """Two nodes with a load balancer in front."""

    nodes: list[Machine]
    ports: dict[str, int]
    """The port of the load balancer for each port of its files."""
    context: ssl.SSLContext
    certificate: str
    """The name in the client's certificate."""

    def owner(self, client_id: str) -> dict[str, Any]:
        """Return what the node of its session says of a client."""
        for node in self.nodes:
            with suppress(OSError):
                found: dict[str, Any] = node.get(f"/explain/{client_id}")
                return found
        raise AssertionError("no node knows this client")


def node_settings(folder: Path, authority: Authority) -> Path:
    """Write the settings that the files ask for, on free ports."""
    pair = authority.issue(HOST)
    files = f'cert = "{pair.cert}", key = "{pair.key}", client_ca = "{authority.cert}"'
    proxies = f'proxies = ["{HOST}"]'
    (folder / "rules.toml").write_text('[roles.device]\nusers = ["*"]\npublish = ["#"]\n')
    path = folder / "flowguard.toml"
    path.write_text(
        f"""
        [network]
        acl_file = "rules.toml"
        listeners = [
            {{address = "mqtt://{HOST}:0", {proxies}, proxies_check_certificates = true}},
            {{address = "mqtts://{HOST}:0", {proxies}, {files}}},
        ]
        [cluster]
        shards = {SHARDS}
        """
    )
    return path


@contextmanager
def nodes_in(folder: Path, authority: Authority, exit_code: int) -> Iterator[list[Machine]]:
    """Yield two nodes, each with a shard; the first one ends with `exit_code`."""
    settings = node_settings(folder, authority)
    with ExitStack() as running:
        redis = running.enter_context(redis_server(folder / "redis", ALWAYS))
        found: list[Machine] = []
        for name in NODES:
            words = ["--config", str(settings), "--workers", str(SHARDS), "--store", "redis"]
            words += ["--redis-url", redis.url, "--cluster", f"{HOST}:{free_block(2 * SHARDS)}"]
            code = 0 if found else exit_code
            found.append(
                running.enter_context(machine(folder / name, *words, exit_code=code, listen=False))
            )
        for node in found:
            wait_until(partial(is_ready, node))
        yield found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_ready(node: Machine) -> bool:
    with suppress(OSError):
        return node.text("/ready") == "1 of 1 workers serve\n"
    return False


def fitted(text: str, nodes: list[Machine], ports: dict[str, int]) -> str:
    """Return a file with the addresses of this test in place of its own."""
    for name, node in zip(NODES, nodes, strict=True):
        for port, (_, own) in zip(NODE_PORTS, node.addresses, strict=False):
            text = text.replace(f"{name}:{port}", f"{HOST}:{own}")
        line = re.compile(rf"(server {name} .*)")
        text = line.sub(rf"\1 port {node.http.rpartition(':')[2]}", text)
    text = re.sub(r".*node-3:.*\n", "", text)
    for port, own in ports.items():
        text = re.sub(rf"(bind |listen )\S*\b{port}\b", rf"\g<1>{HOST}:{own}", text)
    return text


@contextmanager
def haproxy(folder: Path, nodes: list[Machine], ports: dict[str, int]) -> Iterator[None]:
    words = [program_named("haproxy"), "-db"]
    authority_files = {"/etc/haproxy/server.pem": folder / "server.pem"}
    authority_files |= {"/etc/haproxy/client-ca.pem": folder / "authority.pem"}
    for name in HAPROXY:
        text = fitted((ROOT / "deploy" / "haproxy" / name).read_text(), nodes, ports)
        for place, file in authority_files.items():
            text = text.replace(place, str(file))
        (folder / name).write_text(text)
        words += ["-f", str(folder / name)]
    (folder / "asked.cfg").write_text(f"global\n    stats socket {folder / 'haproxy'} level user\n")
    words += ["-f", str(folder / "asked.cfg")]
    with running_program(words, folder / "haproxy.log", ports):
        yield


def servers_of(folder: Path, section: str) -> dict[str, dict[str, str]]:
    """Return what HAProxy says of each node in a section of its files."""
    with unix(folder / "haproxy") as asked:
        asked.sendall(b"show stat\n")
        text = b"".join(iter(lambda: asked.recv(65_536), b"")).decode()
    rows = csv.DictReader(text.removeprefix("# ").splitlines())
    return {row["svname"]: row for row in rows if row["pxname"] == section}


@contextmanager
def nginx(folder: Path, nodes: list[Machine], ports: dict[str, int]) -> Iterator[None]:
    text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text()
    text = fitted(re.sub(r" port \d+", "", text), nodes, ports)
    text = text.replace("/run/nginx-mqtt.pid", str(folder / "nginx.pid"))
    (folder / "nginx.conf").write_text(text)
    program = program_named("nginx")
    modules = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
    if not modules.exists():
        pytest.skip("nginx's stream module is missing: apt-get install libnginx-mod-stream")
    words = [program, "-e", "stderr", "-g", "daemon off;", "-c", str(folder / "nginx.conf")]
    with running_program(words, folder / "nginx.log", ports):
        yield


def program_named(name: str) -> str:
    program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        pytest.skip(f"{name} is missing: make test installs it (apt-get install {name})")
    return program


@contextmanager
def running_program(words: list[str], log: Path, ports: dict[str, int]) -> Iterator[None]:
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            deadline_s = time.monotonic() + PATIENCE_S
            for port in ports.values():
                while True:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < deadline_s
                    with suppress(OSError), tcp((HOST, port)):
                        break
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()


@contextmanager
def setup(folder: Path, program: str, exit_code: int = 0) -> Iterator[Setup]:
    needs_redis()
    program_named(program)
    authority = Authority(folder)
    pair = authority.issue(HOST)
    (folder / "server.pem").write_text(pair.cert.read_text() + pair.key.read_text())
    own = authority.issue("sensor-7")
    listening = ("8883",) if program == "nginx" else ("1883", "8883", "8884")
    ports = dict(zip(listening, free_ports(len(listening)), strict=True))
    front = nginx if program == "nginx" else haproxy
    with nodes_in(folder, authority, exit_code) as nodes, front(folder, nodes, ports):
        yield Setup(nodes, ports, authority.client_context(own), "sensor-7")


def stream_to(found: Setup, port: str) -> Any:
    address = (HOST, found.ports[port])
    return tcp(address) if port == "1883" else tls(address, found.context)


def connect(found: Setup, port: str, name: str) -> tuple[Client, int]:
    """Connect as a client does, again and again; return it and its own port."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline_s
        with suppress(OSError):
            stream = stream_to(found, port)
            client = Client(stream, name)
            answer = client.read()
            if isinstance(answer, Connack) and answer.reason_code == ReasonCode.SUCCESS:
                return client, stream.getsockname()[1]
            client.close()
        time.sleep(0.05)


@pytest.mark.parametrize("program", ["haproxy", "nginx"])
def test_clients_reach_their_sessions_with_address_and_certificate_also_after_a_node_is_killed(
    tmp_path: Path, program: str
) -> None:
    with setup(tmp_path, program, -signal.SIGKILL) as found:
        everyone = [name for shard in range(SHARDS) for name in names(shard, 2)]
        for port in found.ports:
            clients = [connect(found, port, name) for name in everyone]
            for name, (_, own_port) in zip(everyone, clients, strict=True):
                told = found.owner(name)
                assert told["connected"]["address"] == f"{HOST}:{own_port}"
                assert told["user"] == ("" if port == "1883" else found.certificate)
            for client, _ in clients:
                client.close()
        found.nodes[0].broker.process.kill()
        for port in found.ports:
            for name in everyone:
                connect(found, port, name)[0].close()


def shards_of(node: Machine) -> list[int]:
    """Return the numbers of the shards whose workers run at a node."""
    pids = node.pids()
    return [each for each in range(SHARDS) if Path(f"/proc/{pids.get(f'worker-{each}')}").exists()]


def test_haproxy_sends_no_clients_to_a_node_that_is_not_ready_and_ends_none(tmp_path: Path) -> None:
    with setup(tmp_path, "haproxy") as found:
        ((first,), (second,)) = [shards_of(node) for node in found.nodes]
        clients = [connect(found, "1883", name)[0] for name in names(second, 4)]
        with stopped(found.nodes[0].pid(first)):
            wait_until(lambda: servers_of(tmp_path, "mqtt")["node-1"]["status"] == "DOWN")
            before = servers_of(tmp_path, "mqtt")["node-1"]
            assert int(before["scur"]) > 0
            for name in names(second, 4, "new"):
                connect(found, "1883", name)[0].close()
            after = servers_of(tmp_path, "mqtt")["node-1"]
            assert after["stot"] == before["stot"]
        wait_until(lambda: servers_of(tmp_path, "mqtt")["node-1"]["status"] == "UP")
        for client in clients:
            client.send(Pingreq())
            assert isinstance(client.read(), Pingresp)
            client.close()
