"""The end of a connection after DISCONNECT, on real sockets: it comes after the commit."""

import pytest
import trio

from flowguard.codec.packets import Disconnect, Will
from flowguard.types import MQTT_5, MQTT_311
from tests.support.real import SlowStore, Wire, broker, connect, until

VERSIONS = pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
WILL = Will("will", b"gone", 1)


async def has_said_disconnect(wire: Wire, store: SlowStore) -> None:
    """To a store that works no longer."""
    store.open.clear()
    await wire.send(Disconnect())


@VERSIONS
@pytest.mark.parametrize("half_closed", [False, True], ids=["it waits", "it has ended its half"])
async def test_the_end_of_stream_comes_when_the_store_has_it(
    half_closed: bool, version: int
) -> None:
    store = SlowStore()
    async with broker(store=store) as running:
        witness = await connect(running, "witness")
        client = await connect(running, "c", version, durable=True, will=WILL)
        await has_said_disconnect(client, store)
        if half_closed:
            await client.stream.send_eof()
        await until(lambda: len(running.node.partings) == 1)
        await witness.ping()  # All earlier packets have been sent then.
        with trio.move_on_after(0) as scope:
            await client.receive()
        assert scope.cancelled_caught
        store.open.set()
        assert await client.receive() is None
        (record,) = store.sessions()
        assert record.will is None
        await client.close()
        await witness.close()
        await until(lambda: running.node.connections_count == 0)


@VERSIONS
async def test_a_client_that_waits_for_nothing_leaves_no_socket_behind(version: int) -> None:
    store = SlowStore()
    async with broker(store=store) as running:
        client = await connect(running, "c", version, durable=True, will=WILL)
        await has_said_disconnect(client, store)
        await client.close()
        await until(lambda: len(running.node.partings) == 1)
        store.open.set()
        await until(lambda: running.node.connections_count == 0)
