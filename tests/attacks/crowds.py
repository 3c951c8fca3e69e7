"""Attacks by crowds: clients that connect at once, beside floods, and while the broker was
paused."""

import os

import trio

from flowguard.codec.encoder import encode
from flowguard.types import MQTT_5, Publish
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.controls import nobody_home
from tests.attacks.probes import answers, open_all
from tests.attacks.victim import ANSWER_S, Victim, victim
from tests.support.real import connect_packet
from tests.support.storm import Storm

NEWCOMERS = 10
PATIENCE_S = 8.0


# --- a storm -------------------------------------------------------------------------------------


async def storm(size: Size) -> Finding:
    """A crowd that connects at once, each again until it is in."""
    count = size.of(5_000, 100)
    async with victim(size.folder, store="rocks") as broker:
        crowd = Storm(broker.address, count, expiry_s=3_600, seed=1)
        outcome = await trio.to_thread.run_sync(crowd.run, ANSWER_S)
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
            within_s = PATIENCE_S + 4.0 if size.is_full else ANSWER_S
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


# --- a pause of the whole machine ----------------------------------------------------------------


async def pause(size: Size) -> Finding:
    """The machine sleeps longer than a client may take to say CONNECT; all have said it."""
    return await sleep_over(size, said=True)


async def pause_before_they_speak(size: Size) -> Finding:
    """The control: connections that send nothing in all that time are closed."""
    return await sleep_over(size, said=False)


async def sleep_over(size: Size, *, said: bool) -> Finding:
    timeout_s = 4.0
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
    Attack("storm", "a crowd of 5,000 gets in, without a reset", storm, storm_on_the_dying),
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
