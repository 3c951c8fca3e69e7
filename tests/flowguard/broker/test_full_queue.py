"""Publishers that wait for a full queue, on real sockets: all go on, and nothing is lost."""

import pytest
import trio

from flowguard.codec.packets import Puback
from flowguard.stores import MemoryStore
from flowguard.types import Publish
from tests.support.real import SlowStore, Wire, broker, connect, until

SETTINGS = {"session": {"queue_policy": "block", "queue_messages_max": 3, "inflight_max": 2}}
COUNT = 500


async def publish(wire: Wire, count: int) -> None:
    """All at once, as fast as the socket takes them; then their acknowledgements."""
    async with trio.open_nursery() as nursery:
        packets = [Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, count + 1)]
        nursery.start_soon(wire.send, *packets)
        for packet in packets:
            assert (await wire.expect(Puback)).packet_id == packet.packet_id


async def receive(wire: Wire, count: int) -> list[int]:
    """Each is acknowledged when it has arrived."""
    numbers = []
    for _ in range(count):
        message = await wire.expect(Publish)
        numbers.append(int(message.payload))
        await wire.send(Puback(message.packet_id))
    return numbers


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
@pytest.mark.parametrize("expiry_s", [None, 60])
async def test_a_flood_through_a_small_queue_arrives_in_order(
    store: type[MemoryStore], expiry_s: int | None
) -> None:
    async with broker(SETTINGS, store=store(), calm=True) as running:
        subscriber = await connect(running, "s", session_expiry_interval=expiry_s)
        await subscriber.subscribe("t", 1)
        publisher = await connect(running, "p", version=4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, publisher, COUNT)
            numbers = await receive(subscriber, COUNT)
        assert numbers == list(range(1, COUNT + 1))
        assert not running.node.counters.dropped
        await publisher.close()
        await subscriber.close()


async def test_a_publisher_that_waits_is_woken_by_one_acknowledgement() -> None:
    async with broker(SETTINGS, calm=True) as running:
        subscriber = await connect(running, "s")
        await subscriber.subscribe("t", 1)
        publisher = await connect(running, "p")
        await publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 8)))
        for number in range(1, 6):
            assert (await publisher.expect(Puback)).packet_id == number
        await until(lambda: running.node.state.paused_count == 1)
        message = await subscriber.expect(Publish)
        await subscriber.send(Puback(message.packet_id))
        assert (await publisher.expect(Puback)).packet_id == 6
        await publisher.close()
        await until(lambda: running.node.counters.clients_connected == 1)
        await receive(subscriber, 5)
        assert running.node.registry.sessions["s"].queue.count == 0
        await subscriber.close()
