"""Connections that cost a descriptor and give nothing back: they are closed, and in good order."""

import pytest
import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq
from flowguard.types import MQTT_5, MQTT_311, ReasonCode
from tests.flowguard.broker.clock import Clock
from tests.support.real import broker, connect, connect_packet, open_wire, until

IMPATIENT = {"flow": {"connect_timeout_s": 0.3}}
KEEP_ALIVE_S = 3_600
"""A client is closed after one and a half of it, which is longer than any run of the test."""


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with broker(IMPATIENT) as running:
        silent = await open_wire(running)
        assert await silent.receive() is None
        await silent.close()
        await until(lambda: running.node.connections_count == 0)


async def test_a_connect_that_arrives_byte_by_byte_is_closed_while_it_is_being_sent() -> None:
    """Each byte shows life, none of them makes a client: what counts is the time since accept."""
    async with broker(IMPATIENT) as running:
        slow = await open_wire(running)
        data = encode(connect_packet("x" * 10_000), MQTT_5)

        async def drip() -> None:
            for index in range(len(data)):
                await slow.stream.send_all(data[index : index + 1])
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            assert await slow.receive() is None
            nursery.cancel_scope.cancel()
        await slow.close()
        assert running.node.counters.connects_accepted == 0
        await until(lambda: running.node.connections_count == 0)


async def test_a_quick_connect_in_single_bytes_is_a_connect() -> None:
    async with broker() as running:
        client = await open_wire(running)
        for byte in encode(Connect("c"), MQTT_5):
            await client.stream.send_all(bytes((byte,)))
        assert (await client.expect(Connack)).reason_code == 0
        await client.close()


async def test_clients_in_time_outlive_the_connect_timeout(clock: Clock) -> None:
    async with broker() as running:
        client = await connect(running, "c")
        silent = await open_wire(running)
        await until(lambda: running.node.connections_count == 2)
        clock.jump()
        assert await silent.receive() is None
        await client.ping()
        await silent.close()
        await client.close()


@pytest.mark.spec("MQTT-3.1.2-22", "v3:MQTT-3.1.2-24")
async def test_a_client_that_falls_silent_is_told_and_closed_and_one_that_pings_is_not(
    clock: Clock,
) -> None:
    async with broker() as running:
        old = await connect(running, "old", MQTT_311, keep_alive_s=KEEP_ALIVE_S)
        new = await connect(running, "new", keep_alive_s=KEEP_ALIVE_S)
        awake = await connect(running, "awake", keep_alive_s=KEEP_ALIVE_S)
        for _ in range(2):
            clock.jump(KEEP_ALIVE_S)
            await awake.ping()
        assert (await new.expect(Disconnect)).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT
        assert await new.receive() is None
        assert await old.receive() is None
        await until(lambda: running.node.counters.clients_connected == 1)
        await awake.ping()
        for wire in (old, new, awake):
            await wire.close()


async def test_a_peer_that_never_closes_its_end_is_closed_all_the_same() -> None:
    """Our last word is said, we wait for its end a moment, then the descriptor is freed."""
    async with broker() as running:
        client = await open_wire(running)
        await client.send(Pingreq())
        assert await client.receive() is None
        await until(lambda: running.node.connections_count == 0)
        await client.close()


@pytest.mark.slow
async def test_a_peer_that_never_reads_its_last_word_is_closed_all_the_same() -> None:
    """The socket is full when another connection takes over: no more packet fits."""
    async with broker() as running:
        deaf = await connect(running, "c")
        await deaf.subscribe("t", 0)
        publisher = await connect(running, "p")
        connection = running.node.registry.sessions["c"].outbound.connection
        while not connection.outbound.outbox.blocked:
            await publisher.publish("t", bytes(50_000))
        successor = await connect(running, "c")
        assert connection.ended
        await until(lambda: running.node.connections_count == 2)
        assert running.node.state.outbox_budget.used_bytes == 0
        for wire in (deaf, publisher, successor):
            await wire.close()


async def test_a_socket_that_fills_with_the_last_word_is_closed_all_the_same() -> None:
    """Nothing was blocked before; the very last send is."""
    async with broker() as running:
        deaf = await connect(running, "c")
        await deaf.subscribe("t", 0)
        node = running.node
        connection = node.registry.sessions["c"].outbound.connection
        message = b"\x30\x84\x80\x20\x00\x01t\x00" + bytes(2**19)
        for _ in range(40):  # More than any socket takes, in the same stretch as the end.
            connection.outbound.outbox.frames = [*connection.outbound.outbox.frames, message]
            connection.outbound.outbox.size_bytes += len(message)
        connection.end(None, 0.0)
        await until(lambda: node.connections_count == 0)
        assert node.state.outbox_budget.used_bytes == 0
        await deaf.close()
