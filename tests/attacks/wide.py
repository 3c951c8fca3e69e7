"""Attacks by what one packet leads to: many queues, retained messages, overlapping filters."""

from collections.abc import Iterator
from functools import partial
from itertools import product

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Puback, Suback, Subscribe
from flowguard.types import MQTT_5, Properties, Publish, SubscriptionOptions
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.controls import away_for_a_while
from tests.attacks.probes import IN_TIME, all_of, peak_memory, pulse
from tests.attacks.victim import MIB, Victim, victim
from tests.support.real import Wire

GROUPS = 9_500
PUBLISHERS = 30
IN_FLIGHT = 30
"""PUBLISHes of the first of them; the others have one each."""
RETAINED = 99_000
"""There may be 100,000, with those of $SYS."""
READERS = 3
LEVELS = 9
"""Two to the power of it filters match one topic."""
TOPICS = 30_000
TOPICS_LEAST = 1_000
CHUNK = 500
"""Messages in one write."""
LIMIT_BYTES = 150 * MIB
LIMITED = {"flow": {"memory_max_bytes": LIMIT_BYTES}}
UNLIMITED = {
    "flow": {"memory_max_bytes": 40 * LIMIT_BYTES},
    "node": {"plans_bytes_max": 20 * LIMIT_BYTES},
}


# --- many queues ---------------------------------------------------------------------------------


async def groups(size: Size) -> Finding:
    """Each message goes to the durable queues of 9,500 shared subscriptions of a client."""
    count, publishers = size.of(GROUPS, 500), size.of(PUBLISHERS, 5)
    async with (
        victim(size.folder, store="rocks") as broker,
        pulse(broker) as beating,
        peak_memory(broker) as peak,
    ):
        member = await broker.connect("member", durable=True)
        filters = [(f"$share/g{number}/wide", SubscriptionOptions(1)) for number in range(count)]
        await member.send(Subscribe(1, tuple(filters)))
        await member.expect(Suback)
        await member.close()
        durable = await broker.connect("durable", durable=True)
        await durable.subscribe("own", 1)
        wires = [await broker.connect(f"publisher{number}") for number in range(publishers)]
        asked = [(wire, "wide", 1) for wire in wires[1:]]
        asked += [(wires[0], "wide", IN_FLIGHT), (await broker.connect("another"), "own", 1)]
        answered = await all_of([partial(are_acknowledged, *each) for each in asked])
    late, within = beating.in_time(size), peak.below(LIMIT_BYTES)
    said = f"{answered} of {len(asked)} publishers acknowledged, {within.said}"
    return Finding(answered == len(asked) and late.holds and within.holds, f"{said}, {late.said}")


async def are_acknowledged(wire: Wire, topic: str, count: int) -> bool:
    """Return True if all of `count` messages in flight at once are acknowledged."""
    await wire.send(*[Publish(topic, b"x", 1, packet_id=n) for n in range(1, count + 1)])
    return all([isinstance(await wire.receive(), Puback) for _ in range(count)])


# --- many retained messages ----------------------------------------------------------------------


async def retained(size: Size) -> Finding:
    """Subscriptions to `#`, with about as many retained messages as there may be."""
    count = size.of(RETAINED)
    async with victim(size.folder) as broker, pulse(broker) as beating:
        keeper = await broker.connect("keeper")
        await send(keeper, (Publish(f"kept/{n}", b"x", retain=True) for n in range(count)))
        wires = [await broker.connect(f"reader{number}") for number in range(READERS)]
        found = await all_of([partial(gets_all, wire, count) for wire in wires])
    late = beating.in_time(size)
    said = f"{found} of {READERS} got all {count:,} retained messages"
    return Finding(found == READERS and late.holds, f"{said}, {late.said}")


async def gets_all(wire: Wire, count: int) -> bool:
    """All of them are less than may wait for one socket, so that none has to be dropped."""
    await wire.send(Subscribe(1, (("#", SubscriptionOptions(0)),)))
    await wire.expect(Suback)
    for _ in range(count):
        await wire.expect(Publish)
    return True


# --- many overlapping filters --------------------------------------------------------------------


async def spray(size: Size) -> Finding:
    """Messages to ever new topics, each matched by 512 filters with an identifier of their own."""
    async with (
        victim(size.folder, LIMITED) as broker,
        pulse(broker) as beating,
        peak_memory(broker) as peak,
    ):
        await spray_topics(broker, size)
    late, within = beating.in_time(size), peak.below(LIMIT_BYTES)
    return Finding(late.holds and within.holds, f"{within.said}, {late.said}")


async def spray_without_limit(size: Size) -> Finding:
    """The control: a broker with memory for all that could be remembered."""
    async with (
        victim(size.folder, UNLIMITED) as broker,
        peak_memory(broker) as peak,
    ):
        with peak.until_above(LIMIT_BYTES):
            await spray_topics(broker, size)
    return peak.below(LIMIT_BYTES)


async def spray_topics(broker: Victim, size: Size) -> None:
    """The publisher's own messages do not come back to it, so that only the work is measured."""
    wire = await broker.connect("sprayer")
    options = SubscriptionOptions(0, no_local=True)
    for number, words in enumerate(product("+x", repeat=LEVELS), 1):
        filters = (("/".join((*words, "#")), options),)
        await wire.send(Subscribe(1, filters, Properties(subscription_identifiers=(number,))))
        await wire.expect(Suback)
    front = "x/" * LEVELS
    await send(wire, (Publish(f"{front}{n}", b"x") for n in range(size.of(TOPICS, TOPICS_LEAST))))


async def send(wire: Wire, messages: Iterator[Publish]) -> None:
    """All of them; they have been looked at when it returns."""
    chunk = bytearray()
    for number, message in enumerate(messages, 1):
        chunk += encode(message, MQTT_5)
        if number % CHUNK == 0:
            await wire.stream.send_all(chunk)
            chunk.clear()
    await wire.stream.send_all(chunk)
    await wire.ping()


ATTACKS = [
    Attack(
        "groups",
        f"60 PUBLISH into 9,500 durable queues each, 30 of one client: acknowledged, {IN_TIME}",
        groups,
        away_for_a_while,
    ),
    Attack(
        "retained-readers",
        f"99,000 retained messages for `#`, three times: all come, {IN_TIME}",
        retained,
        away_for_a_while,
    ),
    Attack(
        "topic-spray",
        f"memory within its limit, {IN_TIME}",
        spray,
        spray_without_limit,
    ),
]
