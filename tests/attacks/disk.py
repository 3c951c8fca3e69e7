"""Attacks on the disk: it is full, files may not grow, the data directory is removed."""

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from flowguard.codec.packets import Puback
from flowguard.types import Publish, ReasonCode
from tests.attacks.attack import Attack, CannotRun, Finding, Size
from tests.attacks.probes import serves
from tests.attacks.victim import ANSWER_S, MIB, Refused, Victim, victim
from tests.support.real import Wire

STORE_FAILED = 73
DISK_BYTES = 96 * MIB
RESERVE_BYTES = 16 * MIB
SMALL_STORE = {"disk_reserve_bytes": RESERVE_BYTES, "write_buffer_bytes": MIB}
PAYLOAD_BYTES = 10_000
MESSAGES = 200
ROUNDS = 20
LOOK_S = 0.05


# --- no room -------------------------------------------------------------------------------------


async def full_disk(size: Size) -> Finding:
    """Another process fills the disk, and frees it again."""
    return await on_small_disk(size, RESERVE_BYTES * 3 // 4)


async def full_to_the_last_byte(size: Size) -> Finding:
    """Not even the reserve is left."""
    return await on_small_disk(size, 0)


async def on_small_disk(size: Size, left_bytes: int) -> Finding:
    with small_disk(size.folder) as folder:
        ballast = folder / "ballast"

        def fill(_: Victim) -> None:
            with ballast.open("wb") as file:
                while True:
                    file.truncate(0)
                    found = os.statvfs(folder)
                    free_bytes = found.f_bavail * found.f_frsize
                    try:
                        os.posix_fallocate(file.fileno(), 0, free_bytes - left_bytes)
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        continue  # The broker has written something meanwhile.
                    break

        return await without_room(folder, fill, lambda _: ballast.unlink())


async def disk_with_room(size: Size) -> Finding:
    """The control: as much is written to a disk that is not full, and nothing is rejected."""
    return await without_room(size.folder, lambda _: None, lambda _: None)


async def unwritable_files(size: Size) -> Finding:
    """No file may grow by a byte, not even the log: a limit on their size, as of a quota."""
    return await without_room(size.folder, partial(limit_files, limit_bytes=0), limit_files)


def limit_files(victim: Victim, limit_bytes: int = resource.RLIM_INFINITY) -> None:
    resource.prlimit(victim.pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


async def without_room(
    folder: Path, fill: Callable[[Victim], None], give_back: Callable[[Victim], None]
) -> Finding:
    """Do durable work before, during and after the time without space; beside it clean clients."""
    async with victim(folder, {"store": SMALL_STORE}, store="rocks") as broker:
        kept = await broker.connect("kept", durable=True)
        await kept.subscribe("t", 1)
        await kept.close()
        durable = Durable(await broker.connect("publisher"))
        for _ in range(MESSAGES):
            await durable.publish()
        finder = Durable(await broker.connect("finder"))
        fill(broker)
        await finder.send()  # The first writer may have to wait for space; the others do not.
        clean, refused, dropped = 0, 0, 0
        for number in range(ROUNDS):
            with trio.move_on_after(ANSWER_S):
                refused += await is_refused(broker, f"durable{number}")
                dropped += not await durable.publish()
                clean += await clean_exchange(broker, number)
            await trio.sleep(LOOK_S)
        if not broker.is_alive:
            return await serves(broker)
        told = (await trio.to_thread.run_sync(broker.status))["store"]["read_only"]
        give_back(broker)
        with trio.fail_after(ANSWER_S):
            while not await durable.publish():  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
            await finder.answer()
            back = await broker.connect("kept", durable=True)
            delivered = await delivered_of(back, durable)
    accepted = durable.accepted + finder.accepted
    holds = refused > ROUNDS // 2 and dropped > ROUNDS // 2 and told
    said = f"of {ROUNDS} refused {refused} CONNECT and {dropped} PUBLISH, {clean} clean ones served"
    return Finding(
        holds and clean == ROUNDS and delivered == accepted,
        f"{said}, told: {told}, then {delivered} of {accepted} delivered",
    )


@dataclass
class Durable:
    """A publisher to a session that is kept."""

    wire: Wire
    accepted: int = 0

    async def publish(self) -> bool:
        """Whether it was accepted; else it was refused with 0x97."""
        await self.send()
        return await self.answer()

    async def send(self) -> None:
        await self.wire.send(Publish("t", bytes(PAYLOAD_BYTES), 1, packet_id=1))

    async def answer(self) -> bool:
        code = (await self.wire.expect(Puback)).reason_code
        assert code in (ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED), code
        self.accepted += code == ReasonCode.SUCCESS
        return code == ReasonCode.SUCCESS


async def is_refused(broker: Victim, client_id: str) -> bool:
    """Whether a durable session is, with 0x97."""
    try:
        await broker.connect(client_id, durable=True)
    except Refused as error:
        return bool(error.args[0] == ReasonCode.QUOTA_EXCEEDED)
    return False


async def clean_exchange(broker: Victim, number: int) -> bool:
    """A clean client comes in, and publishes to itself."""
    wire = await broker.connect(f"clean{number}")
    await wire.subscribe(f"clean/{number}", 1)
    await wire.send(Publish(f"clean/{number}", b"x", 1, packet_id=1))
    got = {type(await wire.receive()) for _ in range(2)}
    await wire.close()
    return got == {Publish, Puback}


async def delivered_of(wire: Wire, durable: Durable) -> int:
    """Messages of the queue, up to one that is published now: it comes last."""
    await durable.wire.send(Publish("t", b"last", 1, packet_id=1))
    count = 0
    while isinstance(message := await wire.receive(), Publish):
        await wire.send(Puback(message.packet_id))
        if message.payload == b"last":
            return count
        count += 1
    return count


@contextmanager
def small_disk(folder: Path, size_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """Mount a file system of its own. Raises CannotRun if this process may not mount one."""
    point = folder / "disk"
    point.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(point)]
    try:
        subprocess.run(["mount", *options], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotRun("mounting a small disk (tmpfs) needs root") from error
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


# --- no directory --------------------------------------------------------------------------------


async def data_removed(size: Size) -> Finding:
    """The data directory is removed: the broker ends with a name, and logs it."""
    async with victim(size.folder, store="rocks") as broker:
        await publish_durably(broker)
        data = size.folder / "data"
        while data.exists():  # The broker makes and removes files of its own meanwhile.
            shutil.rmtree(data, ignore_errors=True)
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


ATTACKS = [
    Attack(
        "full-disk",
        "durable work is refused, all else served; with room it goes on, and nothing is lost",
        full_disk,
        disk_with_room,
    ),
    Attack(
        "no-byte-left",
        "the same where not even the reserve of the disk is left",
        full_to_the_last_byte,
        disk_with_room,
    ),
    Attack(
        "unwritable-files",
        "the same where no file may grow (RLIMIT_FSIZE), the log neither",
        unwritable_files,
        disk_with_room,
    ),
    Attack("data-removed", "a removed data directory is exit 73, by name", data_removed, data_kept),
]
