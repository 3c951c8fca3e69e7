"""A full disk makes the broker read-only, not useless, and no acknowledged message is lost."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from flowguard.codec.packets import Connack, Puback, Pubrec, Suback, Subscribe
from flowguard.config import StoreSettings
from flowguard.errors import NoSpaceError
from flowguard.flow import Reason
from flowguard.records import StoreOp
from flowguard.stores import Fenced
from flowguard.stores.rocks import RocksStore
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode, SubscriptionOptions
from tests.support.real import (
    SlowStore,
    Wire,
    broker,
    connect,
    connect_packet,
    offline_subscriber,
    open_wire,
    publishes,
    until,
)

QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED


class FullStore(SlowStore):
    """A disk that is full, or not."""

    full = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        if self.full:
            raise NoSpaceError("no space left on device")
        return super().commit(ops)


def message(packet_id: int, qos: int = 1, *, retain: bool = False) -> Publish:
    return Publish("t", b"%d" % packet_id, qos, retain, packet_id=packet_id)


async def answer(wire: Wire, publish: Publish) -> int:
    await wire.send(publish)
    packet = await wire.receive()
    assert isinstance(packet, Puback | Pubrec)
    assert packet.packet_id == publish.packet_id
    return packet.reason_code


async def refusal(wire: Wire, client_id: str, version: int) -> int:
    await wire.send(connect_packet(client_id, version, durable=True))
    return (await wire.expect(Connack)).reason_code


@pytest.mark.parametrize("qos", [1, 2])
async def test_durable_work_is_refused_while_the_disk_is_full_and_done_when_it_is_not(
    qos: int,
) -> None:
    store = FullStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        assert await answer(publisher, message(1, qos)) == 0
        store.full = True
        await publisher.send(message(2, qos))  # The disk is found full: it waits.
        await until(lambda: running.node.state.read_only)
        other = await connect(running, "other")
        assert await answer(other, message(3, qos)) == QUOTA_EXCEEDED
        assert await answer(other, message(4, 1, retain=True)) == QUOTA_EXCEEDED
        store.full = False
        late = await publisher.receive()
        assert isinstance(late, Puback | Pubrec)
        assert (late.packet_id, late.reason_code) == (2, 0)
        await until(lambda: not running.node.state.read_only)
        assert await answer(other, message(5, qos)) == 0
        back = await open_wire(running)
        await back.send(connect_packet("offline", durable=True))
        await back.expect(Connack)
        assert [(await back.expect(Publish)).payload for _ in range(3)] == [b"1", b"2", b"5"]
        assert running.node.counters.dropped == {Reason.STORE_FULL: 2}
        for wire in (publisher, other, back):
            await wire.close()


class SelfClearingStore(FullStore):
    """Upkeep frees space, as retention of the log does, after the first rejection."""

    was_refused = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        self.was_refused |= self.full
        return super().commit(ops)

    def maintain(self) -> bool:
        self.full &= not self.was_refused
        return super().maintain()


async def test_upkeep_goes_on_while_the_disk_is_full_and_may_make_room() -> None:
    store = SelfClearingStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        store.full = True
        assert await answer(publisher, message(1)) == 0
        assert store.was_refused
        await publisher.close()


async def test_a_3_1_1_publisher_waits_unacknowledged_and_is_not_cut_off() -> None:
    store = FullStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", MQTT_311)
        store.full = True
        await publisher.send(*publishes("t", 3))
        await until(lambda: running.node.state.read_only)
        await publisher.ping()
        store.full = False
        for packet_id in (1, 2, 3):
            assert (await publisher.expect(Puback)).packet_id == packet_id
        await publisher.close()


async def test_clients_that_need_no_disk_are_served_on() -> None:
    store = FullStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        store.full = True
        await publisher.send(message(1))
        await until(lambda: running.node.state.read_only)
        clean = await connect(running, "clean")
        await clean.subscribe("u", 1)
        for qos in (0, 1):
            await clean.send(Publish("u", b"x", qos, packet_id=qos))
            assert (await clean.expect(Publish)).qos == qos
        assert (await clean.expect(Puback)).packet_id == 1
        store.full = False
        assert (await publisher.expect(Puback)).reason_code == 0
        await publisher.close()
        await clean.close()


async def test_whoever_finds_out_is_refused_and_everybody_else_let_in() -> None:
    """The first durable CONNECT does not fit into the store; no other client waits because of
    it."""
    store = FullStore()
    async with broker(store=store) as running:
        store.full = True
        first = await open_wire(running)
        assert await refusal(first, "first", MQTT_5) == QUOTA_EXCEEDED
        assert running.node.state.read_only
        assert "first" not in running.node.registry.sessions
        for number in range(30):
            clean = await connect(running, f"clean-{number}")
            await clean.subscribe("u", 1)
            await clean.close()
            durable = await open_wire(running)
            assert await refusal(durable, f"durable-{number}", MQTT_5) == QUOTA_EXCEEDED
            await durable.close()
        assert running.node.journal.committing_s(1e12) == 0.0
        store.full = False
        await until(lambda: not running.node.state.read_only)
        for wire in (first, await connect(running, "first", durable=True)):
            await wire.close()


async def test_a_disk_that_is_full_is_known_before_anybody_asks_and_until_it_is_not(
    tmp_path: Path,
) -> None:
    free_bytes = 0
    settings = StoreSettings(durability="os")
    store = RocksStore(
        tmp_path / "store",
        settings,
        wall_s=lambda: 1.7e9,
        random_node=lambda: 7,
        free_bytes=lambda _: free_bytes,
    )
    async with broker(store=store) as running:
        assert running.node.state.read_only
        newcomer = await open_wire(running)
        assert await refusal(newcomer, "d", MQTT_5) == QUOTA_EXCEEDED
        await newcomer.close()
        clean = await connect(running, "clean")
        free_bytes = 2**40
        await until(lambda: not running.node.state.read_only)
        durable = await connect(running, "d", durable=True)
        free_bytes = settings.disk_reserve_bytes - 1
        await until(lambda: running.node.state.read_only)
        await durable.send(Subscribe(1, (("u", SubscriptionOptions(1)),)))
        assert (await durable.expect(Suback)).reason_codes == (QUOTA_EXCEEDED,)
        await clean.subscribe("u", 1)
        for wire in (clean, durable):
            await wire.close()


async def test_the_log_says_when_there_is_no_room_and_when_there_is_again(tmp_path: Path) -> None:
    free_bytes = 0
    store = RocksStore(
        tmp_path / "store",
        StoreSettings(durability="os"),
        wall_s=lambda: 1.7e9,
        random_node=lambda: 7,
        free_bytes=lambda _: free_bytes,
    )
    with capture_logs() as lines:
        async with broker(store=store) as running:
            newcomer = await open_wire(running)
            assert await refusal(newcomer, "d", MQTT_5) == QUOTA_EXCEEDED
            await newcomer.close()
            free_bytes = 2**40
            await until(lambda: not running.node.state.read_only)
            await until(lambda: any("writable again" in line["event"] for line in lines))
    told = [line["event"] for line in lines if line["event"].startswith(("store full", "store w"))]
    assert told == [
        "store full; durable messages and new durable sessions are rejected",
        "store writable again",
    ]
    (refused,) = [line for line in lines if line["event"] == "peer rejected"]
    assert refused["why"] == "the store is full"


@pytest.mark.parametrize(
    ("version", "code"), [(MQTT_5, QUOTA_EXCEEDED), (MQTT_311, ReasonCode.SERVER_UNAVAILABLE)]
)
async def test_new_sessions_and_subscriptions_that_must_survive_are_refused(
    version: int, code: int
) -> None:
    store = FullStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        durable = await connect(running, "d", durable=True)
        publisher = await connect(running, "p")
        store.full = True
        await publisher.send(message(1))
        await until(lambda: running.node.state.read_only)
        newcomer = await open_wire(running, version)
        assert await refusal(newcomer, "new", version) == code
        assert "new" not in running.node.registry.sessions
        await durable.send(Subscribe(1, (("u", SubscriptionOptions(1)),)))
        assert (await durable.expect(Suback)).reason_codes == (QUOTA_EXCEEDED,)
        store.full = False
        assert (await publisher.expect(Puback)).reason_code == 0
        again = await connect(running, "new", version, durable=True)
        for wire in (durable, publisher, newcomer, again):
            await wire.close()
