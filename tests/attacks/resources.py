"""Attacks on what the machine has few of: descriptors, room on the disk, places at a door."""

import json
import os
import shutil
import socket
import time
from typing import Any

import trio

from flowguard.codec.packets import Puback
from flowguard.types import Publish, ReasonCode
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.probes import open_all, serves
from tests.attacks.victim import ANSWER_S, HOST, MIB, Refused, Victim, victim
from tests.support.storm import Storm

HEALTH_S = 1.0
SPARE_BYTES = 24 * MIB
"""Between what is free and the reserve, before the disk is filled."""
STORE_FAILED = 73
TIMEOUT_S = 2.0
DESCRIPTORS = 1_000
STORM_S = 120.0


# --- descriptors ---------------------------------------------------------------------------------


async def descriptors(size: Size) -> Finding:
    """More connections that say nothing than the process may have descriptors."""
    settings = {"flow": {"connect_timeout_s": TIMEOUT_S}}
    async with victim(size.folder, settings, descriptors=DESCRIPTORS, store="rocks") as broker:
        inside = await broker.connect("inside", durable=True)
        await inside.subscribe("t", 1)
        wires = await open_all(broker, DESCRIPTORS + 100)
        await trio.sleep(2 * TIMEOUT_S)  # A look at the disk, a table, a log: all need one.
        if not broker.is_alive:
            return await serves(broker)
        with trio.move_on_after(ANSWER_S) as scope:
            await inside.send(Publish("t", b"x", 1, packet_id=1))
            got = {type(await inside.receive()) for _ in range(2)}
        if scope.cancelled_caught or got != {Publish, Puback}:
            return Finding(False, "who was in is served no more")
        for wire in wires:
            await wire.close()
        return await serves(broker)


async def killed(size: Size) -> Finding:
    """The control: a broker that has ended."""
    async with victim(size.folder) as broker:
        os.kill(broker.pid, 9)
        await broker.ended()
        return await serves(broker)


# --- the disk ------------------------------------------------------------------------------------


async def full_disk(size: Size) -> Finding:
    """The disk fills up: durable work is refused at once, everybody else is served."""
    return await fill(size, SPARE_BYTES + 8 * MIB)


async def disk_with_room(size: Size) -> Finding:
    """The control: as much is written where there is room, and nothing is refused."""
    return await fill(size, 0)


async def fill(size: Size, ballast_bytes: int) -> Finding:
    found = os.statvfs(size.folder)
    reserve_bytes = found.f_bavail * found.f_frsize - SPARE_BYTES
    settings = {"store": {"disk_reserve_bytes": reserve_bytes}}
    async with victim(size.folder, settings, store="rocks") as broker:
        await broker.connect("before", durable=True)
        ballast = size.folder / "ballast"
        try:
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, ballast_bytes))
            refused = 0
            for number in range(20):
                try:
                    with trio.fail_after(ANSWER_S):
                        await broker.connect(f"durable{number}", durable=True)
                except Refused as error:
                    refused += error.args[0] == ReasonCode.QUOTA_EXCEEDED
                with trio.fail_after(ANSWER_S):
                    wire = await broker.connect(f"clean{number}")
                    await wire.ping()
                await trio.sleep(0.05)
            says = await trio.to_thread.run_sync(broker.status)
        finally:
            ballast.unlink()
    told = bool(says["store"]["read_only"])
    return Finding(
        refused >= 15 and told, f"{refused} of 20 durable CONNECTs refused, told: {told}"
    )


async def data_removed(size: Size) -> Finding:
    """The data directory is removed: the broker ends by name, and says so."""
    async with victim(size.folder, store="rocks") as broker:
        await publish_durably(broker)
        shutil.rmtree(size.folder / "data")
        code = await broker.ended()
    named = "Traceback" not in broker.logged and code == STORE_FAILED
    return Finding(named, f"exit {code}, {'named' if named else 'not named'}")


async def data_kept(size: Size) -> Finding:
    """The control: it is not removed, and the broker ends only because it is asked to."""
    async with victim(size.folder, store="rocks") as broker:
        await publish_durably(broker)
        code = await broker.end()
    return Finding(code == STORE_FAILED, f"exit {code}")


async def publish_durably(broker: Victim) -> None:
    """To a session that is kept, so that there is something to commit all the time."""
    subscriber = await broker.connect("kept", durable=True)
    await subscriber.subscribe("t", 1)
    await subscriber.close()
    publisher = await broker.connect("publisher")
    for number in range(1, 20):
        await publisher.send(Publish("t", b"x", 1, packet_id=number))
        await publisher.expect(Puback)


# --- the HTTP door -------------------------------------------------------------------------------


async def slow_http(size: Size) -> Finding:
    """40 clients of HTTP say a byte and no more; then somebody asks for the broker's health."""
    async with victim(size.folder) as broker:
        slow = [socket.create_connection(door(broker)) for _ in range(size.of(40, 10))]
        for sock in slow:
            sock.send(b"G")
        await trio.sleep(0.5)
        found = await health(broker, size)
        for sock in slow:
            sock.close()
    return found


async def health(broker: Victim, size: Size) -> Finding:
    began_s = time.monotonic()
    limit_s = HEALTH_S if size.share == 1 else ANSWER_S
    try:
        code, _ = await trio.to_thread.run_sync(broker.get, "/health", limit_s)
    except OSError as error:
        return Finding(False, f"no answer: {error}")
    return Finding(code == 200, f"{code} after {1_000 * (time.monotonic() - began_s):.0f} ms")


async def stopped_http(size: Size) -> Finding:
    """The control: a broker that is stopped."""
    async with victim(size.folder) as broker:
        broker.stop()
        return await health(broker, Size(size.folder))


async def odd_backups(size: Size) -> Finding:
    """Requests for a backup that name no folder: each is refused, and the broker runs on."""
    folders: list[Any] = ["\ud800", "x" * 5_000, "relative", "/proc/x", "/\0", None, [[]], {}]
    async with victim(size.folder, store="rocks") as broker:
        codes = []
        for folder in folders:
            codes.append(await trio.to_thread.run_sync(post_backup, broker, folder))
        found = await serves(broker)
    refused = all(400 <= code < 500 for code in codes)
    return Finding(found.holds and refused, f"{codes}, {found.said}")


async def plain_backup(size: Size) -> Finding:
    """The control: one that names a folder is made."""
    async with victim(size.folder, store="rocks") as broker:
        code = await trio.to_thread.run_sync(post_backup, broker, str(size.folder / "copy"))
    return Finding(400 <= code < 500, f"{code}")


def post_backup(broker: Victim, folder: Any) -> int:
    """The status code; blocks."""
    body = json.dumps({"folder": folder}).encode()
    with socket.create_connection(door(broker), timeout=ANSWER_S) as sock:
        head = f"POST /backup HTTP/1.1\r\nHost: {HOST}:{door(broker)[1]}\r\nX-Flowguard: 1\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        return int(sock.recv(4_096).split()[1])


def door(broker: Victim) -> tuple[str, int]:
    return HOST, int(broker.http.rpartition(":")[2])


# --- a storm -------------------------------------------------------------------------------------


async def storm(size: Size) -> Finding:
    """A crowd that connects at once, each again until it is in."""
    count = size.of(5_000, 100)
    async with victim(size.folder, store="rocks") as broker:
        crowd = Storm(broker.address, count, expiry_s=3_600, seed=1)
        outcome = await trio.to_thread.run_sync(crowd.run, STORM_S)
        crowd.close()
    said = f"{outcome.connected} of {count} connected, accidents: {dict(outcome.accidents)}"
    return Finding(outcome.connected == count and not outcome.accidents, said)


async def storm_on_the_dying(size: Size) -> Finding:
    """The control: the broker is killed in the middle of it."""
    count = 2_000
    async with victim(size.folder) as broker:
        crowd = Storm(broker.address, count, expiry_s=0, seed=1)
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                await trio.sleep(0.1)
                os.kill(broker.pid, 9)

            nursery.start_soon(kill)
            outcome = await trio.to_thread.run_sync(crowd.run, 2.0)
        crowd.close()
    return Finding(outcome.connected == count, f"{outcome.connected} of {count} connected")


ATTACKS = [
    Attack("storm", "a crowd of 5,000 gets in, without a reset", storm, storm_on_the_dying),
    Attack(
        "descriptors",
        "more connections than descriptors end nothing, and who is in is served",
        descriptors,
        killed,
    ),
    Attack(
        "full-disk",
        "on a full disk durable work is refused and everybody else is served",
        full_disk,
        disk_with_room,
    ),
    Attack("data-removed", "a removed data directory is exit 73, by name", data_removed, data_kept),
    Attack(
        "slow-http",
        f"40 slow clients of HTTP keep /health waiting no longer than {HEALTH_S} s",
        slow_http,
        stopped_http,
    ),
    Attack("odd-backups", "a backup that names no folder is refused", odd_backups, plain_backup),
]
