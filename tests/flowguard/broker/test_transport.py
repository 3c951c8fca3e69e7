from collections.abc import Sequence

import pytest
import trio
import trio.lowlevel

from flowguard.codec.packets import Packet, Puback
from flowguard.errors import StoreError
from flowguard.records import StoreOp
from flowguard.stores import Fenced
from flowguard.types import MQTT_5, MQTT_311, Publish
from tests.support.real import (
    SlowStore,
    broker,
    connect,
    offline_subscriber,
    publishes,
)

VERSIONS = pytest.mark.parametrize("version", [MQTT_311, MQTT_5])


@VERSIONS
@pytest.mark.spec("MQTT-4.2.0-1", "v3:MQTT-7.1.1-1")
async def test_tcp_carries_every_byte_in_order_in_both_directions(version: int) -> None:
    payloads = [bytes([number]) * (1 + 997 * number) for number in range(100)]
    async with broker({"session": {"outbox_bytes_max": 16 * 1024 * 1024}}) as running:
        subscriber = await connect(running, "s", version)
        await subscriber.subscribe("t", 0)
        publisher = await connect(running, "p", version)
        await publisher.send(*[Publish("t", payload) for payload in payloads])
        for payload in payloads:
            assert (await subscriber.expect(Publish)).payload == payload
        await publisher.close()
        await subscriber.close()


class FailingStore(SlowStore):
    """Commits until `fails` is set."""

    fails = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        if self.fails:
            raise StoreError("the disk is gone")
        return super().commit(ops)


async def publish_twice(store: FailingStore, version: int, answers: list[Packet | None]) -> None:
    async with broker(store=store) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", version)
        await publisher.send(*publishes("t", 1))
        answers.append(await publisher.receive())
        store.fails = True
        await publisher.send(*publishes("t", 1))
        with trio.CancelScope(shield=True):
            answers.append(await publisher.receive())
            await publisher.close()


@VERSIONS
@pytest.mark.spec("v3:MQTT-4.8.0-2")
async def test_what_the_store_cannot_keep_is_not_acknowledged_and_closes(version: int) -> None:
    """The broker cannot go on without its store: it ends, and every connection with it."""
    answers: list[Packet | None] = []
    with pytest.raises(ExceptionGroup) as failure:
        await publish_twice(FailingStore(), version, answers)
    assert failure.group_contains(StoreError)
    assert answers == [Puback(1), None]
