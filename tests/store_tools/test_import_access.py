"""`flowguard import`: a real Mosquitto and its imported configuration admit the same clients.

Each file is run by Mosquitto, imported, and run by flowguard at the same ports. A decision is an
address, the layers below MQTT, whether the client shows a certificate, and its name.
"""

import base64
import hashlib
import io
import os
import shutil
import socket
import ssl
import subprocess
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowguard.address import Address
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect
from flowguard.types import MQTT_311
from store_tools.mosquitto.command import import_conf
from tests.store_tools.mosquitto_files import DEFAULT_PORT, EQUAL, LINES, NARROWER, UNREADABLE
from tests.support.authority import Authority
from tests.support.commands import started
from tests.support.patience import HANG_S

pytestmark = pytest.mark.slow
PROGRAM = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
PORT = 1883
SECRET = b"secret"
ANONYMOUS = "anonymous"
CLIENTS = {
    ANONYMOUS: Connect("device", MQTT_311),
    "anonymous, no client id": Connect("", MQTT_311),
    "ann": Connect("device", MQTT_311, username="ann", password=SECRET),
    "ann, wrong password": Connect("device", MQTT_311, username="ann", password=b"wrong"),
}
OPEN = "open"
"""No client: the address is open."""
ACCEPTED = b"\x20\x02\x00\x00"
"""CONNACK of a client that is let in."""
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
UNEQUAL = "ann, wrong password"
"""Beside a certificate Mosquitto ignores the password, which flowguard rejects."""


class Decision(NamedTuple):
    """A client that is let in, or an address that is open."""

    host: str
    port: int
    layers: str
    has_certificate: bool
    client: str


@dataclass(frozen=True)
class Place:
    """A folder with the files that configurations name."""

    folder: Path
    files: dict[str, str]
    strict: ssl.SSLContext
    """A client that trusts the root alone, and has no certificate."""
    proved: ssl.SSLContext
    """A client with a certificate."""

    def text(self, template: str) -> str:
        for name, value in {**self.files, "folder": str(self.folder)}.items():
            template = template.replace(f"{{{name}}}", value)
        return template


@pytest.fixture
def place(tmp_path: Path, name: str) -> Iterator[Place]:
    if PROGRAM is None:
        pytest.skip("mosquitto is missing: make test installs it (apt-get install mosquitto)")
    with ExitStack() as stack:
        if name in DEFAULT_PORT:
            lock = stack.enter_context((Path(gettempdir()) / "mosquitto-port.lock").open("w"))
            flock(lock, LOCK_EX)
            try:
                socket.create_server(("0.0.0.0", PORT)).close()
            except OSError:
                pytest.skip(f"port {PORT}, where Mosquitto listens by default, is taken")
        yield make_place(tmp_path)


def make_place(tmp_path: Path) -> Place:
    root = Authority(tmp_path)
    middle = Authority(tmp_path, "middle", root)
    pair, leaf, client = root.issue("localhost"), middle.issue("localhost"), root.issue("ann")
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", SECRET, salt, 101)
    hashed = "$".join(base64.b64encode(each).decode() for each in (salt, digest))
    for name in ("conf.d", "empty.d", "more.d"):
        (tmp_path / name).mkdir()
    ports = dict(zip("pqr", map(str, free_ports(3)), strict=True))
    (tmp_path / "conf.d" / "local.conf").write_text(
        f"listener {ports['p']}\nallow_anonymous true\n"
    )
    (tmp_path / "conf.d" / "local.conf.off").write_text(f"listener {ports['r']}\n")
    (tmp_path / "more.d" / "1.conf").write_text(f"port {ports['q']}\n")
    (tmp_path / "more.d" / "2.conf").write_text("allow_anonymous true\nmax_connections 7")
    (tmp_path / "users").write_text(f"ann:$7$101${hashed}\n")
    (tmp_path / "acl").write_text("topic read a/#\nuser ann\ntopic b/#\n")
    (tmp_path / "psk").write_text("ann:0123456789abcdef\n")
    files = {"users": "users", "acl": "acl", "psk": "psk"}
    files = {name: str(tmp_path / file) for name, file in files.items()}
    files |= {"cert": str(pair.cert), "key": str(pair.key), "ca": str(root.cert)}
    files |= {"leaf": str(leaf.cert), "leafkey": str(leaf.key), "middle": str(middle.cert)}
    files["crl"] = str(root.revoke(root.issue("stolen")))
    strict, proved = root.client_context(), root.client_context(client)
    for context in (strict, proved):
        context.check_hostname = False
    return Place(tmp_path, files | ports, strict, proved)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# --- what is open -------------------------------------------------------------------------------


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses at which a process listens, as the kernel has them."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()))
        except FileNotFoundError:
            continue  # It was closed meanwhile.
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state != "0A" or f"socket:[{inode}]" not in inodes:
                continue
            host, port = local.split(":")
            words = [host[at : at + 8] for at in range(0, len(host), 8)]
            raw = b"".join(bytes.fromhex(each)[::-1] for each in words)
            found.add((socket.inet_ntop(family, raw), int(port, 16)))
    for host, port in list(found):
        if host == "::" and takes("127.0.0.1", port):
            found.add(("0.0.0.0", port))
    return found


def takes(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), HANG_S).close()
    except ConnectionRefusedError:
        return False
    return True


def decisions(place: Place, addresses: set[tuple[str, int]]) -> set[Decision]:
    """All that is let in at these addresses, and the addresses."""
    found = set()
    for host, port in addresses:
        at = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
        contexts: list[ssl.SSLContext | None] = [None]
        if exchanged(at, place.strict, b"") is not None:
            contexts = [place.strict, place.proved]
        is_web = (exchanged(at, contexts[-1], UPGRADE) or b"").startswith(b"HTTP/1.1 101 ")
        layers = f"{'ws' if is_web else 'mqtt'}{'s' if contexts[0] else ''}"
        found.add(Decision(host, port, layers, False, OPEN))
        for context in contexts:
            for name, packet in CLIENTS.items():
                connect = encode(packet, MQTT_311)
                # A frame: binary, masked by zeros.
                data = [UPGRADE, b"\x82" + bytes([128 + len(connect)]) + bytes(4) + connect]
                answer = exchanged(at, context, *(data if is_web else [connect])) or b""
                if answer.endswith(ACCEPTED):
                    found.add(Decision(host, port, layers, context is place.proved, name))
    return found


def exchanged(at: tuple[str, int], context: ssl.SSLContext | None, *chunks: bytes) -> bytes | None:
    """The last answer to these chunks, or None if there is no connection.

    A chunk is sent when the one before it is answered.
    """
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(socket.create_connection(at, HANG_S))
            if context is not None:
                wrapped = context.wrap_socket(stream, server_hostname="localhost")
                stream = stack.enter_context(wrapped)
            answer = b""
            for chunk in chunks:
                stream.sendall(chunk)
                if chunk:
                    answer = stream.recv(65_536)
            return answer
    except TimeoutError:
        raise
    except OSError:
        return None


@contextmanager
def mosquitto_with(place: Place, conf: Path) -> Iterator[set[tuple[str, int]]]:
    """Run it, and return its addresses; there are none if it does not start."""
    assert PROGRAM is not None
    process = subprocess.Popen([PROGRAM, "-c", str(conf)], stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        started = any(line.endswith(b" running\n") for line in process.stderr)
        yield listening(process.pid) if started else set()
    finally:
        process.kill()
        process.communicate()


def of_mosquitto(place: Place, conf: Path) -> set[Decision]:
    with mosquitto_with(place, conf) as addresses:
        return decisions(place, addresses)


def of_flowguard(place: Place, out: Path) -> set[Decision]:
    """All that is let in by the result of an import; it must start."""
    count = len(tomllib.loads(out.read_text())["network"]["listeners"])
    words = ("--config", str(out), "--data", str(place.folder / "data"), "--http", "none")
    with started("serve", *words) as command:
        until_s = time.monotonic() + HANG_S
        while command.stdout.count("listening on") < count:
            assert command.process.is_alive(), command.stderr
            assert time.monotonic() < until_s
            time.sleep(0.005)
        pid = command.process.pid
        assert pid is not None
        return decisions(place, listening(pid))


def imported(place: Place, template: str) -> tuple[Path, Path, int, str]:
    """The configuration, the result, the exit code, and what was said."""
    conf, out = place.folder / "mosquitto.conf", place.folder / "flowguard.toml"
    text = place.text(template)
    if os.geteuid() == 0:  # Else it becomes a user that cannot read these files.
        text += "user root\n"
    text += "log_dest stderr\nlog_type information\n"  # It tells when it runs.
    conf.write_bytes(text.encode(errors="surrogateescape"))
    said = io.StringIO()
    with redirect_stderr(said):
        try:
            import_conf(conf, out)
        except typer.Exit as exit:
            return conf, out, exit.exit_code, said.getvalue()
    return conf, out, 0, said.getvalue()


# --- the comparison -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EQUAL)
def test_import_admits_the_same_clients_as_mosquitto(place: Place, name: str) -> None:
    conf, out, code, said = imported(place, EQUAL[name])
    assert code == 0, said
    theirs, ours = of_mosquitto(place, conf), of_flowguard(place, out)
    assert theirs >= ours, said
    assert {each for each in theirs if each.client != UNEQUAL} == {
        each for each in ours if each.client != UNEQUAL
    }


@pytest.mark.parametrize("name", NARROWER)
def test_import_leaves_out_a_listener_when_a_line_is_not_taken(place: Place, name: str) -> None:
    conf, out, code, said = imported(place, NARROWER[name])
    assert code == 1
    assert "the listener is left out" in said
    if out.exists():
        ours = of_flowguard(place, out)
        assert of_mosquitto(place, conf) >= ours
    else:
        assert "every listener is left out" in said


@pytest.mark.parametrize("name", UNREADABLE)
def test_import_writes_nothing_when_mosquitto_does_not_start(place: Place, name: str) -> None:
    conf, out, code, said = imported(place, UNREADABLE[name])
    assert code == 1
    assert "every listener is left out" in said
    assert not out.exists()
    assert not {each for each in of_mosquitto(place, conf) if each.client != OPEN}


@pytest.mark.parametrize("name", [DEFAULT_PORT[0]])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lines=st.lists(st.sampled_from(LINES), max_size=8))
def test_import_opens_no_more_than_mosquitto_for_any_lines(
    place: Place, name: str, lines: list[str]
) -> None:
    out = place.folder / "flowguard.toml"
    out.unlink(missing_ok=True)
    conf, out, _, said = imported(place, "\n".join(["", *lines, ""]))
    if not out.exists():
        return
    network = tomllib.loads(out.read_text())["network"]
    addresses = set()
    clients = set()
    for listener in network["listeners"]:
        address = Address.parse(listener["address"])
        both = address.host == "::" and "ipv6_only" not in listener
        for host in ("::", "0.0.0.0") if both else (address.host,):
            at = (host, address.port, str(address.scheme))
            addresses.add(at)
            if network["allow_anonymous"] and "client_ca" not in listener:
                clients.add(at)
    found = of_mosquitto(place, conf)
    assert addresses <= {each[:3] for each in found}, said
    assert clients <= {each[:3] for each in found if each.client == ANONYMOUS}, said
