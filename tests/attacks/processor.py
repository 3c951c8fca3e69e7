"""Attacks on the processor's time: packets, or chunks of them, that must not delay other
clients."""

import time

import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import (
    Disconnect,
    Packet,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from flowguard.types import MQTT_5, Publish, ReasonCode, SubscriptionOptions
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.controls import away_for_a_while, nobody_home
from tests.attacks.probes import IN_TIME, Pulse, pulse, serves
from tests.attacks.victim import victim
from tests.support.real import Wire

MALFORMED = b"\x30\x01\x00"
AGAIN_S = 2.0
GROUPS = 150
FILTERS = 10_000
FILTER_LENGTH = 100
"""The length at which all filters of a SUBSCRIBE are 1 MiB."""
FILTERS_TOO_MANY = 250_000
PING_CHUNK = b"\xc0\0" * 32_768
ANSWERS_BETWEEN = 3
"""Minimum number of answers to other clients while a large packet is processed."""


# --- a malformed packet behind good ones ---------------------------------------------------------


async def malformed(size: Size) -> Finding:
    """126 bytes: 14 messages, one of which weighs two packets, and then one that is none."""
    async with victim(size.folder) as broker:
        member = await broker.connect("member")
        filters = [f"$share/g{number}/wide" for number in range(GROUPS)]
        wanted = tuple((filter, SubscriptionOptions()) for filter in filters)
        await member.send(Subscribe(1, wanted))
        await member.receive()
        for light in range(20):
            attacker = await broker.connect("attacker")
            said = [Publish("narrow", b"")] * light + [Publish("wide", b"")]
            frames = [encode(each, MQTT_5) for each in said]
            await attacker.stream.send_all(b"".join([*frames, MALFORMED]))
            with trio.move_on_after(AGAIN_S):
                while await attacker.receive() is not None:
                    pass
        return await serves(broker)


# --- large packets -------------------------------------------------------------------------------


async def subscribe(size: Size) -> Finding:
    """A SUBSCRIBE of 1 MiB, and the UNSUBSCRIBE that takes it back."""
    filters = [f"{number}/".ljust(FILTER_LENGTH, "x") for number in range(FILTERS)]
    wanted = tuple((filter, SubscriptionOptions(1)) for filter in filters)
    async with victim(size.folder) as broker, pulse(broker) as beating:
        attacker = await broker.connect("attacker")
        granted, between = await ask(attacker, Subscribe(1, wanted), beating)
        removed, later = await ask(attacker, Unsubscribe(2, tuple(filters)), beating)
    assert isinstance(granted, Suback)
    assert isinstance(removed, Unsuback)
    whole = granted.reason_codes == (1,) * FILTERS and removed.reason_codes == (0,) * FILTERS
    late = beating.in_time(size)
    said = (
        f"{FILTERS:,} granted and removed: {whole}, {between} and {later} answers to others between"
    )
    # In a small attack nobody says that the others had a processor meanwhile.
    shared = min(between, later) >= ANSWERS_BETWEEN or not size.is_full
    return Finding(whole and shared and late.holds, f"{said}, {late.said}")


async def ask(attacker: Wire, packet: Packet, beating: Pulse) -> tuple[Packet | None, int]:
    """The answer, and how many others had meanwhile."""
    began_s = time.monotonic()
    await attacker.send(packet)
    answer = await attacker.receive()
    return answer, beating.between(began_s, time.monotonic())


async def too_many_filters(size: Size) -> Finding:
    """SUBSCRIBE and UNSUBSCRIBE of 1 MiB with 250,000 filters of a byte."""
    filters = ("x",) * FILTERS_TOO_MANY
    wanted = tuple((filter, SubscriptionOptions(1)) for filter in filters)
    async with victim(size.folder) as broker, pulse(broker) as beating:
        asked = (Subscribe(1, wanted), Unsubscribe(1, filters))
        refused = [await is_refused(await broker.connect("attacker"), packet) for packet in asked]
        held = (await trio.to_thread.run_sync(broker.status))["clients"]["subscriptions"]
    late = beating.in_time(size)
    said = f"refused with 0x97: {refused}, {held} subscriptions"
    return Finding(all(refused) and not held and late.holds, f"{said}, {late.said}")


async def is_refused(attacker: Wire, packet: Packet) -> bool:
    """Whether the connection ends with 0x97, and nothing else."""
    await attacker.send(packet)
    answer = await attacker.receive()
    return isinstance(answer, Disconnect) and answer.reason_code == ReasonCode.QUOTA_EXCEEDED


async def pings(size: Size) -> Finding:
    """64 KiB of PINGREQ in one write, again and again, by clients that read every answer."""
    chunks, clients = size.of(20, 2), size.of(10, 2)
    answered_bytes = 0
    async with victim(size.folder) as broker, pulse(broker) as beating:

        async def flood(number: int) -> None:
            nonlocal answered_bytes
            wire = await broker.connect(f"flood{number}")
            for _ in range(chunks):
                await wire.stream.send_all(PING_CHUNK)
                left_bytes = len(PING_CHUNK)
                while left_bytes and (data := await wire.stream.receive_some(left_bytes)):
                    left_bytes -= len(data)
                    answered_bytes += len(data)

        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(flood, number)
    late = beating.in_time(size)
    asked_bytes = clients * chunks * len(PING_CHUNK)
    said = f"{answered_bytes // 2:,} of {asked_bytes // 2:,} answered"
    return Finding(answered_bytes == asked_bytes and late.holds, f"{said}, {late.said}")


ATTACKS = [
    Attack("malformed", "126 bytes that end in no packet hold up nobody", malformed, nobody_home),
    Attack(
        "subscribe",
        f"SUBSCRIBE and UNSUBSCRIBE of 1 MiB: {IN_TIME}",
        subscribe,
        away_for_a_while,
    ),
    Attack(
        "too-many-filters",
        f"SUBSCRIBE and UNSUBSCRIBE with 250,000 filters are refused: {IN_TIME}",
        too_many_filters,
        away_for_a_while,
    ),
    Attack("pings", f"64 KiB of PINGREQ at once: {IN_TIME}", pings, away_for_a_while),
]
