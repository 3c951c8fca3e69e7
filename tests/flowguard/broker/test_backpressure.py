"""A publisher that is too fast is stopped at its window, and at nothing else."""

import pytest
import trio

from flowguard.broker import housekeeping
from flowguard.codec.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
)
from flowguard.flow.load.signals import StoreState
from flowguard.session.inbound.input import LOOKAHEAD_BYTES
from flowguard.types import MQTT_5, MQTT_311, Publish, SubscriptionOptions
from tests.flowguard.broker.clock import Clock
from tests.support.real import (
    SlowStore,
    Wire,
    broker,
    connect,
    offline_subscriber,
    publishes,
    until,
)

READ_AHEAD_MAX = LOOKAHEAD_BYTES + 64 * 1024
"""Bytes read before reading stops: the look-ahead, exceeded by one chunk at most."""


async def puback_all(wire: Wire, count: int) -> None:
    for number in range(1, count + 1):
        assert (await wire.expect(Puback)).packet_id == number


@pytest.mark.parametrize("window", [1, 10, 100])
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_a_flood_into_a_slow_store_is_stopped_at_exactly_the_window(
    version: int, window: int
) -> None:
    store = SlowStore()
    settings = {"flow": {"window_max": window}, "session": {"receive_maximum": 1_000}}
    async with broker(settings, store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", version)
        node = running.node
        store.open.clear()
        await publisher.send(*publishes("t", 1_000))
        await publisher.ping()  # Answered ahead of what waits, and after all of it was looked at.
        inbound = node.registry.sessions["p"].outbound.connection.inbound
        assert node.counters.publish_received == window
        assert inbound.window.in_process == window
        await publisher.ping()
        assert node.counters.publish_received == window
        store.open.set()
        await puback_all(publisher, 1_000)
        assert inbound.window.in_process == 0
        await publisher.close()


async def test_a_flood_larger_than_the_look_ahead_stays_in_the_publishers_socket() -> None:
    store = SlowStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", MQTT_311)
        other = await connect(running, "other")
        node = running.node
        before = node.counters.bytes_received
        store.open.clear()
        flood = publishes("t", 1_500, payload=bytes(10_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.send, *flood)
            await until(lambda: node.counters.publish_received == 100)
            connection = node.registry.sessions["p"].outbound.connection
            await until(lambda: not connection.wants_read)
            for _ in range(10):
                await other.ping()
            taken = node.counters.bytes_received - before
            assert taken <= 100 * 10_010 + READ_AHEAD_MAX
            assert node.counters.publish_received == 100
            store.open.set()
            await puback_all(publisher, 1_500)
        await publisher.close()
        await other.close()


async def test_subscriptions_count_like_messages() -> None:
    store = SlowStore()
    async with broker({"flow": {"window_max": 2}}, store=store, calm=True) as running:
        client = await connect(running, "c", durable=True)
        store.open.clear()
        asked = [Subscribe(n, ((f"t/{n}", SubscriptionOptions(1)),)) for n in range(1, 6)]
        await client.send(*asked)
        await client.ping()
        assert len(running.node.registry.sessions["c"].subscriptions) == 2
        store.open.set()
        for number in range(1, 6):
            assert (await client.expect(Suback)).packet_id == number
        await client.close()


async def test_acknowledgements_of_a_paused_client_are_processed() -> None:
    """It publishes too fast and receives at once: what it received must not stay unacknowledged."""
    store = SlowStore()
    async with broker({"flow": {"window_max": 1}}, store=store, calm=True) as running:
        await offline_subscriber(running, "slow")
        client = await connect(running, "c", receive_maximum=1)
        await client.subscribe("quick", 1)
        other = await connect(running, "other")
        for number in (1, 2):
            await other.send(Publish("quick", b"%d" % number, 1, packet_id=number))
            await other.expect(Puback)
        first = await client.expect(Publish)
        store.open.clear()
        await client.send(*publishes("slow", 50), Puback(first.packet_id))
        assert (await client.expect(Publish)).payload == b"2"
        store.open.set()
        await puback_all(client, 50)
        await client.close()
        await other.close()


async def test_qos_2_exchanges_go_on_while_their_client_is_paused() -> None:
    store = SlowStore()
    async with broker({"flow": {"window_max": 1}}, store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        client = await connect(running, "c")
        await client.send(Publish("t", b"", 2, packet_id=1))
        await client.expect(Pubrec)
        store.open.clear()
        await client.send(Publish("t", b"", 1, packet_id=2), Publish("t", b"", 1, packet_id=3))
        await client.send(Pubrel(1))
        await client.expect(Pubcomp)
        assert running.node.counters.publish_received == 2
        store.open.set()
        await client.expect(Puback)
        await client.expect(Puback)
        await client.close()


async def test_one_paused_publisher_leaves_the_others_their_windows() -> None:
    store = SlowStore()
    async with broker({"flow": {"window_max": 5}}, store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        wires = [await connect(running, f"p{number}", MQTT_311) for number in range(3)]
        store.open.clear()
        for count, wire in enumerate(wires, 1):
            await wire.send(*publishes("t", 50))
            await wire.ping()
            assert running.node.counters.publish_received == 5 * count
        store.open.set()
        for wire in wires:
            await puback_all(wire, 50)
            await wire.close()


async def test_a_store_that_hangs_presses_the_window_down_to_one() -> None:
    store = SlowStore()
    async with broker(store=store) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", MQTT_311)
        await publisher.send(*publishes("t", 5_000))  # Work that a smaller window puts off.
        await puback_all(publisher, 5_000)
        store.open.clear()
        await publisher.send(*publishes("t", 100))
        await until(lambda: running.node.guard.window.limit == 1)
        store.open.set()
        await puback_all(publisher, 100)
        await until(lambda: running.node.guard.window.limit > 1)
        await publisher.close()


async def test_a_store_that_says_it_is_stalled_is_believed_before_anybody_waits_for_it() -> None:
    store = SlowStore()
    async with broker(store=store) as running:
        guard = running.node.guard
        store.state = StoreState.STOPPED
        await until(lambda: guard.grant.pressure.cause == "store" and guard.window.limit < 100)
        assert guard.grant.pressure.value >= 4
        store.state = StoreState.FLOWING
        await until(lambda: guard.grant.pressure.value < 1)


async def test_a_full_journal_pauses_everybody_and_resumes_them() -> None:
    store = SlowStore()
    settings = {"flow": {"journal_ops_max": 10}}
    async with broker(settings, store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        wires = [await connect(running, f"p{number}", MQTT_311) for number in range(3)]
        node = running.node
        store.open.clear()
        for wire in wires:
            await wire.send(*publishes("t", 200))
            await wire.ping()
        assert node.guard.window.closed
        assert node.counters.publish_received <= 200
        store.open.set()
        for wire in wires:
            await puback_all(wire, 200)
            await wire.close()
        assert not node.guard.window.closed


async def test_a_full_journal_of_an_immediate_store_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "TICK_S", 3_600)
    async with broker({"flow": {"journal_ops_max": 1}}, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", MQTT_311)
        await publisher.send(*publishes("t", 1_000))
        await puback_all(publisher, 1_000)
        await publisher.close()


@pytest.mark.slow
async def test_keep_alive_spares_a_client_that_we_do_not_read(clock: Clock) -> None:
    """The window is spent and the look-ahead full, so the broker causes the silence."""
    store = SlowStore()
    async with broker({"flow": {"window_max": 1}}, store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        client = await connect(running, "c", MQTT_311, keep_alive_s=3_600)
        silent = await connect(running, "silent", MQTT_311, keep_alive_s=3_600)
        connection = running.node.registry.sessions["c"].outbound.connection
        store.open.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.send(*publishes("t", 50, payload=bytes(10_000))))
            await until(lambda: not connection.wants_read)
            clock.jump(3 * 3_600)
            assert await silent.receive() is None
            was_ended = connection.ended
            store.open.set()
            assert not was_ended
            await puback_all(client, 50)
        await client.ping()
        for wire in (client, silent):
            await wire.close()


async def test_a_client_that_reads_no_answers_is_not_read_and_goes_on_when_it_does() -> None:
    """More answers than the outbox takes: unknown PUBREC, each answered with a longer PUBREL."""
    settings = {"session": {"outbox_bytes_max": 16 * 1024}}
    async with broker(settings) as running:
        client = await connect(running, "c")
        count = 20_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, *[Pubrec(1)] * count)
            for _ in range(count):
                await client.expect(Pubrel)
        await client.send(Pingreq())
        await client.expect(Pingresp)
        await client.close()


async def test_a_client_with_a_window_of_one_may_talk_to_itself() -> None:
    settings = {"flow": {"window_max": 1}}
    async with broker(settings, store=SlowStore()) as running:
        client = await connect(running, "c", durable=True, receive_maximum=1)
        await client.subscribe("t", 2)
        await client.send(*publishes("t", 100, qos=2))
        delivered = completed = 0
        while delivered < 100 or completed < 100:
            match await client.receive():
                case Pubrec(packet_id):
                    await client.send(Pubrel(packet_id))
                case Pubrel(packet_id):
                    await client.send(Pubcomp(packet_id))
                case Pubcomp():
                    completed += 1
                case Publish(packet_id=packet_id):
                    delivered += 1
                    await client.send(Pubrec(packet_id))
                case packet:
                    raise AssertionError(packet)
        await client.send(Disconnect())
        assert await client.receive() is None
        await client.close()
