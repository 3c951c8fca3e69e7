"""`python -m benchmarks.tls_storm`: a crowd comes by TLS at once, to flowguard and to Mosquitto.

What a connection costs the broker is its own processor time, which others on the machine do not
change much. Times are the crowd's as well: it is one process of Python, and as busy as the broker.
Some clients are in before the crowd comes, in a process of their own, and measure PINGREQ to
PINGRESP before and meanwhile.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.synchronize
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated

import trio
import typer

from flowguard.cli.descriptors import use_all_descriptors
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet, Pingreq
from flowguard.types import MQTT_5, ReasonCode

HOST = "127.0.0.1"
RESIDENTS = 10
PING_S = 0.05
CALM_S = 3.0
PATIENCE_S = 60.0
"""Of a client, for one attempt."""
RETRY_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)


@dataclass
class Storm:
    """What came of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    connected_s: list[float] = field(default_factory=list)


class _Peer:
    """A client's end of a TLS connection."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._decoder = PacketDecoder(65_536, MQTT_5, role="client")

    async def ask(self, packet: Packet) -> Packet | None:
        """The next packet after this one was sent; None: the broker has closed."""
        await self._stream.send_all(encode(packet, MQTT_5))
        while (answer := self._decoder.next()) is None:
            data = await self._stream.receive_some(4_096)
            if not data:
                return None
            self._decoder.feed(bytes(data))
        return answer


async def _open(port: int, context: ssl.SSLContext) -> _Peer:
    plain = await trio.open_tcp_stream(HOST, port)
    return _Peer(trio.SSLStream(plain, context, server_hostname=HOST))


async def _attempt(port: int, context: ssl.SSLContext, client_id: str) -> tuple[str, _Peer | None]:
    """What came of one attempt, in a word, and the connection that stays."""
    try:
        with trio.fail_after(PATIENCE_S):
            peer = await _open(port, context)
            connack = await peer.ask(Connect(client_id, MQTT_5))
    except trio.TooSlowError:
        return "unanswered", None
    except (trio.BrokenResourceError, OSError):
        return "reset", None
    if not isinstance(connack, Connack):
        return "closed", None
    if connack.reason_code == ReasonCode.SUCCESS:
        return "connected", peer
    return f"refused {connack.reason_code:#x}", None


async def _come(port: int, clients: int, context: ssl.SSLContext) -> Storm:
    storm = Storm()
    stay: list[_Peer] = []
    began_s = monotonic()

    async def live(number: int) -> None:
        while True:
            outcome, peer = await _attempt(port, context, f"storm-{number}")
            storm.outcomes[outcome] += 1
            if peer is not None:
                stay.append(peer)
                storm.connected_s.append(monotonic() - began_s)
                return
            await trio.sleep(RETRY_S)

    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(live, number)
    return storm


def _reside(
    port: int,
    cert: str,
    calm: "multiprocessing.synchronize.Event",
    ends: "multiprocessing.synchronize.Event",
    found: "multiprocessing.connection.Connection",
) -> None:
    """Measure pings before and while the crowd comes; a process of its own."""

    async def measure() -> tuple[list[float], list[float]]:
        context = ssl.create_default_context(cafile=cert)
        peers = []
        for number in range(RESIDENTS):
            outcome, peer = await _attempt(port, context, f"resident-{number}")
            assert peer is not None, outcome
            peers.append(peer)
        before: list[float] = []
        during: list[float] = []
        until_s = monotonic() + CALM_S
        while not ends.is_set():
            is_calm = monotonic() < until_s
            if not is_calm:
                calm.set()
            for peer in peers:
                sent_s = monotonic()
                assert await peer.ask(Pingreq()) is not None
                (before if is_calm else during).append(monotonic() - sent_s)
            await trio.sleep(PING_S)
        return before, during

    found.send(trio.run(measure))


# --- the brokers -------------------------------------------------------------------------------


@contextmanager
def _flowguard(folder: Path) -> Iterator[tuple[int, int]]:
    """A broker's process and port."""
    words = ("--listen", f"mqtts://{HOST}:0", "--cert", "cert.pem", "--key", "key.pem")
    command = [sys.executable, "-m", "flowguard", "serve", *words, "--store", "memory"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process.pid, int(line.split()[2].rpartition(":")[2])
        process.terminate()


@contextmanager
def _mosquitto(folder: Path) -> Iterator[tuple[int, int]]:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
    (folder / "mosquitto.conf").write_text(
        f"listener {port} {HOST}\nallow_anonymous true\ncertfile {folder}/cert.pem\n"
        f"keyfile {folder}/key.pem\nuser root\n"
    )
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    with subprocess.Popen(
        [program, "-c", "mosquitto.conf"], cwd=folder, stderr=subprocess.DEVNULL
    ) as process:
        until_s = monotonic() + PATIENCE_S
        while monotonic() < until_s:
            try:
                socket.create_connection((HOST, port)).close()
                break
            except ConnectionRefusedError:
                sleep(0.05)
        yield process.pid, port
        process.terminate()


def _processor_s(pid: int) -> float:
    """What a process has had of the processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


BROKERS = {"flowguard": _flowguard, "mosquitto": _mosquitto}


def _run(name: str, clients: int, folder: Path) -> None:
    cert = str(folder / "cert.pem")
    spawn = multiprocessing.get_context("spawn")
    with BROKERS[name](folder) as (pid, port):
        calm, ends = spawn.Event(), spawn.Event()
        ours, theirs = spawn.Pipe(duplex=False)
        residents = spawn.Process(target=_reside, args=(port, cert, calm, ends, theirs))
        residents.start()
        calm.wait(PATIENCE_S)
        before_s = _processor_s(pid)
        storm = trio.run(_come, port, clients, ssl.create_default_context(cafile=cert))
        cost_s = _processor_s(pid) - before_s
        ends.set()
        calmly, meanwhile = ours.recv()
        residents.join()
    times = sorted(storm.connected_s)
    typer.echo(
        f"{name}: {dict(storm.outcomes)}; 99 % connected after {_at(times, 0.99):.1f} s; "
        f"{1e3 * cost_s / clients:.2f} ms of the processor per client; "
        f"pings p99 {1e3 * _at(calmly, 0.99):.1f} ms before, "
        f"{1e3 * _at(meanwhile, 0.99):.1f} ms meanwhile"
    )


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def main(
    clients: Annotated[int, typer.Option(min=1, help="That come at once.")] = 5_000,
    brokers: Annotated[str, typer.Option(help="By comma.")] = ",".join(BROKERS),
) -> None:
    """Have a crowd come by TLS at once, to one broker after the other."""
    use_all_descriptors()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
        for broker in brokers.split(","):
            _run(broker, clients, folder)


if __name__ == "__main__":
    typer.run(main)
