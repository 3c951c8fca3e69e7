"""Attacks on deadlines: timers that fail, handshakes that never end, commits that take too long."""

import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from flowguard.cli.remote.ask import ask
from flowguard.codec.packets import Connack, Puback, Will
from flowguard.types import Properties, Publish
from tests.attacks.attack import Attack, CannotRun, Finding, Size
from tests.attacks.probes import peak_memory
from tests.attacks.victim import ANSWER_S, MIB, Victim, victim
from tests.support.authority import Authority
from tests.support.real import connect_packet
from tests.support.stalling import built

# --- wills without a right -----------------------------------------------------------------------

WILLS = 200
DELAY_S = 2
LATE_S = 4.0
"""A keep-alive of one second expires after 1.5 s."""
RULES = '[roles.guest]\nanonymous = true\npublish = ["kept", "{}"]\nreceive = ["#"]\n'


async def wills_withdrawn(size: Size) -> Finding:
    """A reload withdraws the right to delayed wills that are armed."""
    return await delayed_wills(size, "nothing")


async def wills_kept(size: Size) -> Finding:
    """The control: it does not, and they all come."""
    return await delayed_wills(size, "withdrawn")


async def delayed_wills(size: Size, topic: str) -> Finding:
    rules = size.folder / "acl.toml"
    rules.write_text(RULES.format("withdrawn"))
    settings = {"network": {"acl_file": str(rules), "allow_anonymous": True}}
    async with victim(size.folder, settings) as broker:
        watcher = await broker.connect("watcher")
        await watcher.subscribe("#", 0)
        for number in range(size.of(WILLS, least=5)):
            will = Will("withdrawn", b"", properties=Properties(will_delay_interval=DELAY_S))
            wire = await broker.connect(f"c{number}", durable=True, will=will)
            await wire.close()
        rules.write_text(RULES.format(topic))
        assert (await trio.to_thread.run_sync(ask, broker.http, "/reload", {}, ANSWER_S))[0] == 200
        await trio.sleep(DELAY_S)
        began_s = time.monotonic()
        await broker.connect("silent", keep_alive_s=1, will=Will("kept", b""))
        came = 0
        while (await watcher.expect(Publish)).topic != "kept":
            came += 1
        took_s = time.monotonic() - began_s
    holds = not came and (took_s <= LATE_S or not size.is_full)
    return Finding(holds, f"{came} came without a right, another's came after {took_s:.1f} s")


# --- handshakes that never end -------------------------------------------------------------------

TLS_LIMIT_BYTES = 100 * MIB
TLS_CLIENTS_MAX = 328
UNLIMITED = 40
STRANGERS = 380
STAY_S = 4.0
"""The control may take ten times as long: it ends as soon as it has found something."""
CHAIN_BYTES = 120_000
"""Size of the certificates in PEM; OpenSSL accepts 100 KiB in DER."""
CHAIN_SENT_BYTES = 30_000
LONG_HELLO = b"\x16\x03\x01\0\x02\x01\x01" + b"\x16\x03\x01\0\x02\xff\xff"
"""The head of a ClientHello of 131 KB, in records of two bytes."""


async def unfinished_handshakes(size: Size) -> Finding:
    """Long ClientHellos, and handshakes that stop in the middle of the client's certificates."""
    return await handshakes(size, 1, STAY_S)


async def unlimited_handshakes(size: Size) -> Finding:
    """The control: the limits are much higher."""
    return await handshakes(size, UNLIMITED, 10 * STAY_S)


async def handshakes(size: Size, times: int, stay_s: float) -> Finding:
    authority = Authority(size.folder)
    pair, client = authority.issue("127.0.0.1"), authority.issue("client")
    chain = size.folder / "chain.pem"
    one = authority.cert.read_bytes()
    chain.write_bytes(client.cert.read_bytes() + CHAIN_BYTES // len(one) * one)
    context = authority.client_context()
    context.load_cert_chain(chain, client.key)
    files = {"cert": pair.cert, "key": pair.key, "client_ca": authority.cert}
    settings = {
        "flow": {
            "memory_max_bytes": times * TLS_LIMIT_BYTES,
            "memory_objective": 0.85,  # At the default the broker would not start.
            "connect_timeout_s": 600,
        },
        "node": {"connections_max": times * TLS_CLIENTS_MAX},
        "network": {name: str(path) for name, path in files.items()} | {"allow_all_topics": True},
    }
    async with victim(size.folder, settings, scheme="mqtts") as broker, peak_memory(broker) as peak:
        count = size.of(STRANGERS, least=20)
        with trio.move_on_after(stay_s), peak.until_above(TLS_LIMIT_BYTES):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(half_handshake, broker, context, number % 16 == 0)
        for wire in broker.wires:
            wire.stream.socket.close()
        plain = await trio.open_tcp_stream(*broker.address)
        fit = authority.client_context(client)
        stream = trio.SSLStream(plain, fit, server_hostname="127.0.0.1")
        await stream.do_handshake()
        await stream.aclose()
    return peak.below(TLS_LIMIT_BYTES)


async def half_handshake(broker: Victim, context: ssl.SSLContext, is_long: bool) -> None:
    """Leaves the last kilobytes of its certificates out."""
    with suppress(OSError, trio.BrokenResourceError):
        stream = (await broker.open()).stream
        if is_long:
            await stream.send_all(LONG_HELLO)
            await trio.sleep_forever()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        while True:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            said = outgoing.read()
            await stream.send_all(said[:CHAIN_SENT_BYTES])
            incoming.write(await stream.receive_some())


# --- a disk that stands still --------------------------------------------------------------------

PATIENCE_S = 1.5
STALL_S = 2.5
PAUSE_S = 0.1


async def stalled_disk(size: Size) -> Finding:
    """Newcomers come while a durable commit does not end."""
    return await at_stalled_disk(size, lambda broker: None)


async def stopped(size: Size) -> Finding:
    """The control: the broker itself stands still."""
    return await at_stalled_disk(size, Victim.stop)


async def at_stalled_disk(size: Size, also: Callable[[Victim], None]) -> Finding:
    file = size.folder / "stalled"
    environ = {"LD_PRELOAD": str(library(size.folder)), "STALLED": str(file)}
    flow = {"connect_patience_s": PATIENCE_S}
    async with victim(size.folder, {"flow": flow}, store="rocks", environ=environ) as broker:
        reader = await broker.connect("reader", durable=True)
        await reader.subscribe("t", 1)
        publisher = await broker.connect("publisher")
        file.touch()
        await publisher.send(Publish("t", b"x", 1, packet_id=1))
        await trio.sleep(PAUSE_S)
        also(broker)
        waits_s: list[float] = []
        async with trio.open_nursery() as nursery:
            for number in range(round(STALL_S / PAUSE_S)):
                nursery.start_soon(wait_of_newcomer, broker, number, waits_s)
                await trio.sleep(PAUSE_S)
            await trio.sleep(PATIENCE_S)
            nursery.cancel_scope.cancel()
        file.unlink()
        broker.go_on()
        await publisher.expect(Puback)
    late = round(STALL_S / PAUSE_S) - sum(wait_s <= 1.5 * PATIENCE_S for wait_s in waits_s)
    worst = f", the others within {max(waits_s):.1f} s" if waits_s else ""
    return Finding(not late, f"{late} newcomers of {round(STALL_S / PAUSE_S)} had no answer{worst}")


async def wait_of_newcomer(broker: Victim, number: int, waits_s: list[float]) -> None:
    """Append the time until its CONNACK; one in two is durable."""
    began_s = time.monotonic()
    wire = await broker.open()
    await wire.send(connect_packet(f"c{number}", durable=number % 2 > 0))
    await wire.expect(Connack)
    waits_s.append(time.monotonic() - began_s)


def library(folder: Path) -> Path:
    """Return the library that stalls. Raises CannotRun if there is no compiler."""
    try:
        return built(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotRun("a disk that stalls needs a C compiler") from error


ATTACKS = [
    Attack(
        "wills-withdrawn",
        f"none of {WILLS} comes, and another client's keep-alive ends within {LATE_S:.0f} s",
        wills_withdrawn,
        wills_kept,
    ),
    Attack(
        "unfinished-handshakes",
        f"{STRANGERS} of TLS stay within the memory limit, and a newcomer's ends",
        unfinished_handshakes,
        unlimited_handshakes,
    ),
    Attack(
        "stalled-disk",
        f"each newcomer is answered, its patience being {PATIENCE_S} s",
        stalled_disk,
        stopped,
        is_tested=False,
    ),
]
