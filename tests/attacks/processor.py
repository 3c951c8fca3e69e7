"""Attacks on the processor's time: a packet that must not hold up everybody else."""

import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Subscribe
from flowguard.types import MQTT_5, Publish, SubscriptionOptions
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.probes import answers, open_all, pulse, serves
from tests.attacks.victim import Victim, victim
from tests.support.real import connect_packet

MALFORMED = b"\x30\x01\x00"
AGAIN_S = 2.0
LATE_MAX_S = 0.25
"""For a client that asks all the time, on whatever machine this runs."""
GROUPS = 150
FILTERS = 60_000
NEWCOMERS = 10
PATIENCE_S = 8.0


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


# --- one large SUBSCRIBE -------------------------------------------------------------------------


async def subscribe(size: Size) -> Finding:
    """One SUBSCRIBE of up to 1 MiB beside a client that only asks whether the broker is there."""
    async with victim(size.folder) as broker, pulse(broker) as beating:
        attacker = await broker.connect("attacker")
        filters = tuple((f"{n}/x/y", SubscriptionOptions(1)) for n in range(size.of(FILTERS)))
        await attacker.send(Subscribe(1, filters))
        await attacker.receive()
    return late(size, beating.worst_s)


async def pause_in_between(size: Size) -> Finding:
    """The control: a broker that is away for a while."""
    async with victim(size.folder) as broker, pulse(broker) as beating:
        broker.stop()
        await trio.sleep(2 * LATE_MAX_S)
        broker.go_on()
    return late(Size(size.folder), beating.worst_s)


def late(size: Size, worst_s: float) -> Finding:
    holds = worst_s <= LATE_MAX_S or size.share < 1  # A test judges no time.
    return Finding(holds, f"worst answer after {1_000 * worst_s:.0f} ms")


# --- newcomers beside floods ---------------------------------------------------------------------


async def newcomers(size: Size) -> Finding:
    """Messages at QoS 0 as fast as they go, to readers that never read; then clients knock."""
    async with victim(size.folder) as broker:
        for number in range(size.of(20, 2)):
            deaf = await broker.connect(f"deaf{number}")
            await deaf.subscribe("flood", 0)
        async with trio.open_nursery() as nursery:
            for number in range(size.of(10, 2)):
                nursery.start_soon(flood, broker, number)
            await trio.sleep(1.0)
            within_s = PATIENCE_S + 4.0 if size.share == 1 else 60.0
            found = [await answers(broker, f"new{n}", within_s) for n in range(NEWCOMERS)]
            nursery.cancel_scope.cancel()
    return Finding(all(found), f"{sum(found)} of {NEWCOMERS} answered")


async def flood(broker: Victim, number: int) -> None:
    """Until cancelled, or cut off."""
    wire = await broker.connect(f"flood{number}")
    chunk = encode(Publish("flood", bytes(200)), MQTT_5) * 300
    try:
        while True:
            await wire.stream.send_all(chunk)
    except trio.BrokenResourceError:
        pass


async def nobody_home(size: Size) -> Finding:
    """The control: a broker that is stopped, and answers nobody."""
    async with victim(size.folder) as broker:
        broker.stop()
        found = await answers(broker, within_s=0.5)
    return Finding(found, "answered" if found else "not answered")


# --- a pause of the whole machine ----------------------------------------------------------------


async def pause(size: Size) -> Finding:
    """The machine sleeps longer than a client may take to say CONNECT; all have said it."""
    return await sleep_over(size, said=True)


async def pause_before_they_speak(size: Size) -> Finding:
    """The control: those that say nothing in all that time are closed."""
    return await sleep_over(size, said=False)


async def sleep_over(size: Size, *, said: bool) -> Finding:
    timeout_s = 2.0
    settings = {"flow": {"connect_timeout_s": timeout_s}}
    async with victim(size.folder, settings) as broker:
        count = size.of(200, 20)
        wires = await open_all(broker, count)
        assert await answers(broker)  # They are accepted.
        broker.stop()
        for number, wire in enumerate(wires):
            if said:
                await wire.send(connect_packet(f"c{number}"))
        await trio.sleep(1.5 * timeout_s)
        broker.go_on()
        answered = 0
        for wire in wires:
            try:
                answered += await wire.receive() is not None
            except trio.BrokenResourceError:
                pass
    return Finding(answered == count, f"{answered} of {count} answered")


ATTACKS = [
    Attack("malformed", "126 bytes that end in no packet hold up nobody", malformed, nobody_home),
    Attack(
        "subscribe",
        f"a SUBSCRIBE of 1 MiB keeps nobody else waiting for {LATE_MAX_S} s",
        subscribe,
        pause_in_between,
    ),
    Attack(
        "newcomers",
        "beside floods and readers that never read, who knocks is answered",
        newcomers,
        nobody_home,
    ),
    Attack(
        "pause",
        "who has said CONNECT before a pause of the process is answered after it",
        pause,
        pause_before_they_speak,
    ),
]
