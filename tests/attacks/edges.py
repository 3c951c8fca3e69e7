"""Attacks at the edges of a broker: its backlog, its standard streams, the proxy in front of it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Pingreq
from flowguard.config import FlowSettings
from flowguard.flow.load.signals import TICK_S
from flowguard.types import MQTT_311, Publish
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.controls import nobody_home
from tests.attacks.probes import LOOK_S, open_all, serves
from tests.attacks.victim import HOST, MIB, victim
from tests.support.real import Wire, connect_packet

WINDOW = FlowSettings().window_max
DESCRIPTORS = 200
GIVEN_UP = 150
WAIT_S = 3.0
"""One tick of 100 ms for each of those that left would take five times as long."""
PUBLISHES = 5_000
"""PUBLISHes that a proxy reads ahead of its window."""


# --- the listen backlog --------------------------------------------------------------------------


async def given_up(size: Size) -> Finding:
    """Clients ask while there is no place, and leave before one becomes free."""
    return await live_client_behind(size, leaves=True)


async def still_waiting(size: Size) -> Finding:
    """The control: they stay, and the first of them gets the place."""
    return await live_client_behind(size, leaves=False)


async def live_client_behind(size: Size, *, leaves: bool) -> Finding:
    async with victim(size.folder, descriptors=DESCRIPTORS) as broker:
        door = (await trio.to_thread.run_sync(broker.status))["listener"]
        inside = [await broker.connect(f"c{n}") for n in range(door["connections"]["limit"])]
        before = [await broker.open(MQTT_311) for _ in range(size.of(GIVEN_UP))]
        for number, wire in enumerate(before):
            await wire.send(connect_packet(f"before{number}", MQTT_311))
        live = await broker.open()
        await live.send(connect_packet("live"))
        await trio.sleep(2 * TICK_S)
        for wire in before if leaves else ():
            await wire.close()
        freed_s = trio.current_time()
        await inside.pop().close()
        with trio.move_on_after(WAIT_S):
            await live.expect(Connack)
            waited_s = trio.current_time() - freed_s
            return Finding(True, f"CONNACK after {waited_s:.1f} s behind {len(before)}")
    return Finding(False, f"no CONNACK after {WAIT_S} s behind {len(before)}")


# --- standard streams ----------------------------------------------------------------------------


async def log_unread(size: Size) -> Finding:
    """Nothing reads the log any more, and clients that are no clients are logged."""
    log = size.folder / "broker.log"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with victim(size.folder) as broker:
            inside = await broker.connect("inside")
            fill(log)
            for wire in await open_all(broker, 3, first=b"GET / HTTP/1.1\r\n\r\n"):
                await wire.receive()
            await inside.ping()
            return await serves(broker)
    finally:
        os.close(reader)


def fill(pipe: Path) -> None:
    """Leave no byte of its capacity."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    try:
        while os.write(writer, b"x"):
            pass
    except BlockingIOError:
        os.close(writer)


async def output_unwritable(size: Size) -> Finding:
    """Standard output is a full disk, or closed."""
    found = [await serves_with(size.folder, redirection) for redirection in (">/dev/full", ">&-")]
    return Finding(all(found), f"{sum(found)} of {len(found)} brokers answer")


async def output_ends(size: Size) -> Finding:
    """The control: the shell cannot open the output, so that no broker starts."""
    found = await serves_with(size.folder, ">/dev/null/none")
    return Finding(found, "answers" if found else "ended")


async def serves_with(folder: Path, redirection: str) -> bool:
    place = folder / "socket"
    words = ["serve", "--listen", f"unix:{place}", "--store", "memory", "--http", "none"]
    with flowguard(folder, words, redirection) as started:
        while not place.exists():
            if started.poll() is not None:
                return False
            await trio.sleep(LOOK_S)
        wire = Wire(await trio.open_unix_socket(str(place)), MQTT_311)
        await wire.send(connect_packet("c", MQTT_311))
        await wire.expect(Connack)
        await wire.close()
        place.unlink()
        return started.poll() is None


# --- signals -------------------------------------------------------------------------------------


async def hang_up_at_start(size: Size) -> Finding:
    """SIGHUP while broker and proxy read a file of settings during their start."""
    return await survive(size.folder, signal.SIGHUP)


async def unknown_signal_at_start(size: Size) -> Finding:
    """The control: a signal that ends any process that does not expect it."""
    return await survive(size.folder, signal.SIGUSR1)


async def survive(folder: Path, number: signal.Signals) -> Finding:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    listen = ["--listen", f"{HOST}:0"]
    commands = [
        ["serve", *listen, "--store", "memory", "--http", "none", "--shadow", str(pipe)],
        ["proxy", *listen, "--upstream", f"{HOST}:1", "--config", str(pipe)],
    ]
    listening = 0
    for words in commands:
        with flowguard(folder, words) as started:
            writer = await trio.to_thread.run_sync(os.open, pipe, os.O_WRONLY)
            started.send_signal(number)
            await trio.sleep(LOOK_S)
            with suppress(BrokenPipeError):
                os.write(writer, b"[flow]\n")
            os.close(writer)
            assert started.stdout is not None
            line = await trio.to_thread.run_sync(started.stdout.readline)
            listening += line.startswith(b"listening")
    return Finding(listening == len(commands), f"{listening} of {len(commands)} listen afterwards")


# --- the proxy -----------------------------------------------------------------------------------


async def one_identifier(size: Size) -> Finding:
    """A client gives all its PUBLISHes one packet identifier; the upstream acknowledges none."""
    async with silent_upstream() as upstream:
        with proxy(size.folder, upstream.port) as port:
            return await upstream.forwarded(port)


async def without_proxy(size: Size) -> Finding:
    """The control: the same client without a proxy."""
    async with silent_upstream() as upstream:
        return await upstream.forwarded(upstream.port)


class Upstream:
    """A broker that accepts clients and acknowledges nothing."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._publishes = 0
        self._has_all = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        decoder = PacketDecoder(MIB)
        async for data in stream:
            decoder.feed(data)
            while (packet := decoder.next()) is not None:
                if isinstance(packet, Connect):
                    await stream.send_all(encode(Connack(False, 0), MQTT_311))
                self._publishes += isinstance(packet, Publish)
                if isinstance(packet, Pingreq):
                    self._has_all.set()

    async def forwarded(self, port: int) -> Finding:
        """Whether a client's PUBLISHes stay within a window; its PINGREQ passes those that wait."""
        wire = Wire(await trio.open_tcp_stream(HOST, port), MQTT_311)
        await wire.send(connect_packet("one-identifier", MQTT_311))
        await wire.expect(Connack)
        await wire.send(*(Publish("t", b"x", 1, packet_id=1) for _ in range(PUBLISHES)), Pingreq())
        await self._has_all.wait()
        await wire.close()
        said = f"{self._publishes:,} of {PUBLISHES:,} PUBLISH forwarded"
        return Finding(0 < self._publishes <= WINDOW, said)


@asynccontextmanager
async def silent_upstream() -> AsyncIterator[Upstream]:
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    upstream = Upstream(listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, upstream.serve, listeners))
        yield upstream
        nursery.cancel_scope.cancel()


@contextmanager
def proxy(folder: Path, upstream_port: int) -> Iterator[int]:
    """The port of a `flowguard proxy`."""
    words = ["proxy", "--listen", f"{HOST}:0", "--upstream", f"{HOST}:{upstream_port}"]
    with flowguard(folder, words) as started:
        assert started.stdout is not None
        yield int(started.stdout.readline().split()[2].rpartition(b":")[2])


@contextmanager
def flowguard(
    folder: Path, words: list[str], redirection: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """A command of flowguard as the shell starts it; it is killed at the end."""
    command = f"exec {shlex.join([sys.executable, '-m', 'flowguard', *words])} {redirection}"
    with (
        (folder / "command.log").open("ab") as log,
        subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=log) as started,
    ):
        try:
            yield started
        finally:
            started.kill()


ATTACKS = [
    Attack(
        "given-up",
        f"a freed place goes to a live client within {WAIT_S:.0f} s, behind {GIVEN_UP} that left",
        given_up,
        still_waiting,
    ),
    Attack(
        "log-unread",
        "a log that nothing reads any more delays no client",
        log_unread,
        nobody_home,
    ),
    Attack(
        "output-unwritable",
        "a broker serves with standard output full or closed",
        output_unwritable,
        output_ends,
    ),
    Attack(
        "hang-up-at-start",
        "SIGHUP during the start ends neither broker nor proxy",
        hang_up_at_start,
        unknown_signal_at_start,
    ),
    Attack(
        "one-identifier",
        f"a proxy forwards {WINDOW} unacknowledged PUBLISHes of one identifier at most",
        one_identifier,
        without_proxy,
    ),
]
