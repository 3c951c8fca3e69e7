"""A connection that has ended leaves nothing behind, after any end, with or without the garbage
collector."""

import gc
from collections.abc import Iterator

import pytest

from flowguard.codec.packets import Connack, Connect, Disconnect, Pingreq
from flowguard.session.connection import ServerConnection
from flowguard.types import MQTT_5
from tests.support.real import broker, connect, connect_packet, open_wire, until


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connections_held() -> int:
    return sum(type(each) is ServerConnection for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
async def test_a_connection_that_is_over_is_freed() -> None:
    async with broker({"flow": {"connect_timeout_s": 600}}) as running:
        before = connections_held()

        silent = await open_wire(running)
        await until(lambda: connections_held() == before + 1)
        await silent.close()

        malformed = await open_wire(running)
        await malformed.send(Pingreq())
        assert await malformed.receive() is None
        await malformed.close()

        refused = await open_wire(running, version=4)
        await refused.send(Connect("", 4, clean_start=False))
        assert (await refused.expect(Connack)).reason_code
        await refused.close()

        orderly = await connect(running, "orderly", keep_alive_s=600)
        await orderly.send(Disconnect())
        assert await orderly.receive() is None
        await orderly.close()

        gone = await connect(running, "gone", durable=True, keep_alive_s=600)
        await gone.close()

        old = await connect(running, "twice")
        new = await connect(running, "twice")
        await old.expect(Disconnect)
        await new.send(connect_packet("twice", MQTT_5))  # a second CONNECT
        await new.expect(Disconnect)
        await old.close()
        await new.close()

        deaf = await connect(running, "deaf")
        await deaf.subscribe("t", 0)
        talker = await connect(running, "talker")
        for _ in range(20):
            await talker.publish("t", bytes(1_000_000))
        await talker.ping()
        await deaf.close()
        await talker.close()

        await until(lambda: connections_held() == before)


@pytest.mark.usefixtures("no_collection")
async def test_a_socket_that_closes_before_connect_is_forgotten_at_once() -> None:
    async with broker({"flow": {"connect_timeout_s": 600}}) as running:
        before = connections_held()
        for _ in range(10):
            wire = await open_wire(running)
            await wire.close()
        await until(lambda: connections_held() == before)
