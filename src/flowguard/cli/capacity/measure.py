"""Rates of one core of this machine, each measured in seconds."""

import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from tempfile import TemporaryDirectory
from typing import Final

from flowguard.address import Address
from flowguard.broker.layers.tls import TlsFiles
from flowguard.errors import UnreadyError
from flowguard.identity.passwords import PasswordFile
from flowguard.network_settings import NetworkSettings

MEASURE_S: Final = 1.5
"""Duration of a measurement, seconds."""
CROWD: Final = 50
"""Number of clients that connect together while CONNECTs are measured."""
PATIENCE_S: Final = 30.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tls_files_of(network: NetworkSettings) -> TlsFiles | None:
    """Return the files of the first listener with TLS, or None if there is none."""
    for listener in network.listeners:
        if Address.parse(listener.address).scheme.has_tls:
            return TlsFiles.of(listener, network)
    return None


def handshakes_per_s(files: TlsFiles | None) -> float | None:
    """Return full TLS handshakes per second of the server's side, without client certificates.

    Without `files` it makes a P-256 certificate, or returns None if the program openssl is missing.
    """
    if files is not None:
        return _handshakes_per_s(files)
    with TemporaryDirectory() as folder:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        return _handshakes_per_s(TlsFiles(cert, key)) if _certify(cert, key) else None


def _certify(cert: Path, key: Path) -> bool:
    """Make a certificate; return False if the program openssl is missing."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return False
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost"
    made = subprocess.run(
        [openssl, *words.split(), "-out", cert, "-keyout", key], capture_output=True, check=False
    )
    return made.returncode == 0


def _handshakes_per_s(files: TlsFiles) -> float:
    of_server = files.load()
    of_server.verify_mode = ssl.CERT_NONE
    of_client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    of_client.check_hostname = False
    of_client.verify_mode = ssl.CERT_NONE
    count, used_s, began_s = 0, 0.0, time.perf_counter()
    while time.perf_counter() - began_s < MEASURE_S:
        used_s += _handshake_s(of_server, of_client)
        count += 1
    return count / used_s


def _handshake_s(of_server: ssl.SSLContext, of_client: ssl.SSLContext) -> float:
    """Return the time that the server's side of one handshake takes, seconds."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = of_client.wrap_bio(to_client, to_server)
    server = of_server.wrap_bio(to_server, to_client, server_side=True)
    used_s, is_done = 0.0, False
    while not is_done:
        _advance(client)
        began_s = time.perf_counter()
        is_done = _advance(server)
        used_s += time.perf_counter() - began_s
    return used_s


def _advance(side: ssl.SSLObject) -> bool:
    """Continue a handshake; return True if it is complete."""
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def passwords_per_s(users: Path) -> float:
    """Return passwords of CONNECTs that a core verifies per second. Raises ConfigError."""
    file = PasswordFile.read(users)
    count, began_s = 0, time.process_time()
    while (used_s := time.process_time() - began_s) < MEASURE_S:
        file.verify("", b"")  # An unknown user takes as long as a known one.
        count += 1
    return count / used_s


def connects_per_s() -> float:
    """Return CONNECTs per second of processor time of a broker without TLS and passwords.

    Raises UnreadyError if a broker cannot start here.
    """
    with TemporaryDirectory() as folder, _broker(folder) as (process, port):
        count, began_s, before_s = 0, time.monotonic(), _processor_s(process)
        while time.monotonic() - began_s < MEASURE_S:
            count += _connect_crowd(port, count)
        used_s = _processor_s(process) - before_s
    return count / max(used_s, 1 / CLOCK_TICKS)


@contextmanager
def _broker(folder: str) -> Iterator["tuple[subprocess.Popen[str], int]"]:
    """A broker of its own on a free port, with default settings; yields its process and port."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("FLOWGUARD_")}
    words = "-m flowguard serve --listen 127.0.0.1:0 --http none --store memory --data"
    process = subprocess.Popen(
        [sys.executable, *words.split(), folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
    )
    with process:
        try:
            assert process.stdout is not None
            place = process.stdout.readline().split()
            if len(place) < len(["listening", "on", "PLACE"]):
                raise UnreadyError("a broker for the measurement did not start: flowguard serve")
            yield process, int(place[2].rpartition(":")[2])
        finally:
            process.kill()


def _connect_crowd(port: int, number: int) -> int:
    """Connect clients that differ from those before; return the number that were accepted."""
    clients = [create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(CROWD)]
    for index, client in enumerate(clients):
        name = b"capacity-%012d" % (number + index)
        body = b"\0\4MQTT\4\2\0\74" + len(name).to_bytes(2) + name
        client.sendall(bytes([0x10, len(body)]) + body)
    accepted = sum(client.recv(4)[3:] == b"\0" for client in clients)
    for client in clients:
        client.close()
    return accepted


def _processor_s(process: "subprocess.Popen[str]") -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
