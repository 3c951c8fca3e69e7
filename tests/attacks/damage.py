"""Attacks on stored data: a byte of each kind of file is changed, or the file is cut short.

Allowed are three results: all acknowledged data exists after the start; the broker ends with 73 and
a name; or the client of the damaged queue gets 0x83, and the others everything. A silent loss is
not allowed.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from flowguard.codec.packets import Disconnect, Puback, Suback, Subscribe
from flowguard.types import Publish, ReasonCode, SubscriptionOptions
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.disk import STORE_FAILED
from tests.attacks.probes import answers
from tests.attacks.victim import ANSWER_S, MIB, Ended, Victim, victim
from tests.support.real import Wire

KINDS = (".sst", ".blob", ".log", "MANIFEST", "CURRENT", "OPTIONS", "synced")
KINDS_LEAST = (".sst", ".blob", ".log")
FILES = 3
"""Number of files of each kind, the largest ones."""
CLIENTS = 4
MESSAGES = 250
"""To each client, before the first end of the broker and again before it is killed."""
RETAINED = 50
LARGE_BYTES = 8_000
CHUNK = 50
STORE = {"store": {"write_buffer_bytes": MIB, "cache_bytes": MIB}}
LAST = b"last"
Damage = Callable[[Path], None]


@dataclass
class Stored:
    """The acknowledged payloads, by topic."""

    queued: dict[str, set[bytes]] = field(default_factory=dict)
    retained: set[bytes] = field(default_factory=set)


# --- what is stored ------------------------------------------------------------------------------


async def fill(folder: Path, older: Path) -> Stored:
    """A store in tables, blobs and a log of writes; `older` gets a copy of the first half."""
    stored = Stored()
    async with victim(folder, STORE, store="rocks") as broker:
        for number in range(CLIENTS):
            wire = await broker.connect(f"c{number}", durable=True)
            await wire.subscribe(f"c{number}", 1)
        await publish_half(broker, stored, "first")
        await broker.end()
    shutil.copytree(folder / "data", older / "data")
    async with victim(folder, STORE, store="rocks") as broker:
        await publish_half(broker, stored, "second")
        os.kill(broker.pid, 9)
        await broker.ended()
    return stored


async def publish_half(broker: Victim, stored: Stored, half: str) -> None:
    wire = await broker.connect("publisher")
    for topic in (f"c{number}" for number in range(CLIENTS)):
        payloads = payloads_of(f"{half} {topic}", MESSAGES)
        stored.queued.setdefault(topic, set()).update(payloads)
        await publish(wire, [Publish(topic, payload, 1) for payload in payloads])
    payloads = payloads_of(f"{half} retained", RETAINED)
    stored.retained.update(payloads)
    kept = [Publish(f"kept/{half}/{n}", each, 1, True) for n, each in enumerate(payloads)]
    await publish(wire, kept)


def payloads_of(words: str, count: int) -> list[bytes]:
    """Most of them small, each tenth in a blob."""
    texts = (f"{words} {number}".encode() for number in range(count))
    return [text.ljust(LARGE_BYTES if n % 10 == 0 else 1, b".") for n, text in enumerate(texts)]


async def publish(wire: Wire, messages: list[Publish]) -> None:
    """They are acknowledged when it returns."""
    for first in range(0, len(messages), CHUNK):
        chunk = messages[first : first + CHUNK]
        for number, message in enumerate(chunk, 1):
            message.packet_id = number
        await wire.send(*chunk)
        for _ in chunk:
            assert (await wire.expect(Puback)).reason_code < ReasonCode.UNSPECIFIED_ERROR


# --- what is done to it --------------------------------------------------------------------------


def change_byte(path: Path, at: float) -> None:
    """`at`: from 0, its first one, to 1."""
    data = bytearray(path.read_bytes())
    if data:
        data[min(len(data) - 1, int(at * len(data)))] ^= 0x10
        path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def damages_of(data: Path, size: Size) -> list[tuple[str, str, Damage]]:
    """Kind, name of a file, and what happens to it."""
    found: list[tuple[str, str, Damage]] = []
    for kind in KINDS if size.is_full else KINDS_LEAST:
        files = sorted(data.glob(f"*{kind}*"), key=lambda path: path.stat().st_size)
        assert files, f"no file {kind}"
        if not size.is_full:
            found.append((kind, files[-1].name, partial(change_byte, at=0.5)))
            continue
        for path in files[-FILES:]:
            found += [(kind, path.name, partial(change_byte, at=at)) for at in (0.3, 0.7)]
        found.append((kind, files[-1].name, cut))
    return found


# --- what is found afterwards --------------------------------------------------------------------


async def outcome_of(folder: Path, stored: Stored) -> str:
    """`whole`, `73`, `0x83`, or what is missing without a word."""
    try:
        async with victim(folder, STORE, store="rocks") as broker:
            told = 0
            for topic, payloads in stored.queued.items():
                try:
                    missing = payloads - await delivered(broker, topic)
                except Told:
                    told += 1
                    continue
                if missing:
                    return f"{len(missing)} messages of {topic} missing"
            if missing := stored.retained - await retained(broker, len(stored.retained)):
                return f"{len(missing)} retained messages missing"
            if not await answers(broker):
                return "nobody is answered"
            return "0x83" if told else "whole"
    except Ended as end:
        is_named = end.code == STORE_FAILED and "Traceback" not in end.log
        return "73" if is_named else f"exit {end.code} without a name"


class Told(Exception):
    """The broker has said that it cannot read this client's queue."""


async def delivered(broker: Victim, topic: str) -> set[bytes]:
    """Return what the client of this topic gets, up to a message that is published now. Raises
    Told."""
    found: set[bytes] = set()
    with trio.fail_after(ANSWER_S):
        publisher = await broker.connect("publisher")
        await publish(publisher, [Publish(topic, LAST, 1)])
        wire = await broker.connect(topic, durable=True)
        while isinstance(packet := await wire.receive(), Publish):
            if packet.payload == LAST:
                return found
            found.add(packet.payload)
            await wire.send(Puback(packet.packet_id))
    if isinstance(packet, Disconnect):
        assert packet.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, packet
        raise Told
    if packet is None:
        raise Ended(await broker.ended(), broker.logged)
    raise AssertionError(packet)


async def retained(broker: Victim, count: int) -> set[bytes]:
    """Return the retained messages that arrive, of `count`."""
    wire = await broker.connect("reader")
    await wire.send(Subscribe(1, (("kept/#", SubscriptionOptions(0)),)))
    await wire.expect(Suback)
    found: set[bytes] = set()
    with trio.move_on_after(ANSWER_S):
        while len(found) < count:
            found.add((await wire.expect(Publish)).payload)
    return found


# --- all together --------------------------------------------------------------------------------


async def damage(size: Size) -> Finding:
    """Run first without damage: all data must exist, or the later results mean nothing."""
    made = size.folder / "made"
    made.mkdir()
    stored = await fill(made, size.folder / "older")
    told: dict[str, Counter[str]] = {"none": Counter([await outcome_of(copy(made), stored)])}
    for kind, name, damage in damages_of(made / "data", size):
        again = copy(made)
        damage(again / "data" / name)
        told.setdefault(kind, Counter())[await outcome_of(again, stored)] += 1
    holds = told["none"].keys() == {"whole"}
    holds = holds and all(counts.keys() <= {"whole", "73", "0x83"} for counts in told.values())
    shown = (
        f"{kind}: {', '.join(f'{count} {word}' for word, count in counts.items())}"
        for kind, counts in told.items()
    )
    return Finding(holds, "; ".join(shown))


async def older_copy(size: Size) -> Finding:
    """The control: an older copy lies in its place, which nothing in it can tell."""
    made, older = size.folder / "made", size.folder / "older"
    made.mkdir()
    stored = await fill(made, older)
    found = await outcome_of(older, stored)
    return Finding(found in ("whole", "73", "0x83"), found)


def copy(made: Path) -> Path:
    again = made.with_name("again")
    shutil.rmtree(again, ignore_errors=True)
    return shutil.copytree(made, again)


ATTACKS = [
    Attack(
        "damage",
        "of a damaged store everything is there, or the loss has a name: exit 73, or 0x83",
        damage,
        older_copy,
    )
]
