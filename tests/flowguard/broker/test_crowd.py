"""Many clients at once: every CONNECT gets an answer, and no connection is reset."""

import time

import pytest
import trio

from flowguard.broker import housekeeping
from flowguard.codec.packets import Connack, Pingreq, Pingresp
from flowguard.types import MQTT_5, MQTT_311, ReasonCode
from tests.support.patience import HANG_S
from tests.support.real import (
    SlowStore,
    broker,
    connect,
    connect_packet,
    open_wire,
    publishes,
    until,
)
from tests.support.storm import Outcome, Storm

CROWD = 2_500
GATE = {
    "connects_in_process_max": 50,
    "connect_buffer_max": 1_000,
    "connect_timeout_s": HANG_S,
    "connect_patience_s": HANG_S,
}
"""No client is closed or rejected for being late: on a starved machine all of them are."""


async def run_storm(storm: Storm) -> Outcome:
    """The crowd in its own thread, the broker in this one."""
    try:
        return await trio.to_thread.run_sync(storm.run, HANG_S)
    finally:
        storm.close()


@pytest.mark.slow
@pytest.mark.parametrize("expiry_s", [0, 3_600], ids=["transient", "durable"])
async def test_thousands_of_clients_at_once_all_get_in_through_a_gate_of_fifty(
    expiry_s: int,
) -> None:
    """Clients beyond 50 in process and 1,000 waiting are rejected with 137 and try again."""
    store = SlowStore()
    async with broker({"flow": GATE}, store=store, calm=True) as running:
        gate = running.node.guard.gate
        outcome = await run_storm(Storm(running.address, CROWD, expiry_s=expiry_s, seed=1))
        assert not outcome.accidents
        assert not outcome.waiting
        assert outcome.connected == CROWD
        assert set(outcome.refused) <= {ReasonCode.SERVER_BUSY}
        assert sum(gate.refused.values()) == sum(outcome.refused.values())
        assert (gate.in_process, gate.buffered, gate.buffered_bytes) == (0, 0, 0)
        assert running.node.counters.connects_accepted == CROWD


@pytest.mark.slow
async def test_a_crowd_before_a_store_that_hangs_waits_up_to_its_limits_and_is_told_137() -> None:
    store = SlowStore()
    store.open.clear()
    async with broker({"flow": GATE}, store=store, calm=True) as running:
        gate = running.node.guard.gate
        storm = Storm(running.address, CROWD, expiry_s=3_600, seed=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_storm, storm)
            await until(lambda: sum(gate.refused.values()) >= CROWD)
            assert (gate.in_process, gate.buffered) == (gate.limit, 1_000)
            assert not storm.outcome.connected
            store.open.set()
        assert not storm.outcome.accidents
        assert storm.outcome.connected == CROWD


async def test_connects_that_wait_go_on_without_any_other_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of a burst waits neither for another client's packet nor for the next tick."""
    monkeypatch.setattr(housekeeping, "TICK_S", 3_600)
    flow = {"connects_in_process_max": 1, "connect_buffer_max": 100, "connect_patience_s": 3_600}
    async with broker({"flow": flow}) as running:
        wires = [await open_wire(running) for _ in range(50)]
        async with trio.open_nursery() as nursery:
            for number, wire in enumerate(wires):
                nursery.start_soon(wire.send, connect_packet(str(number)))
        for wire in wires:
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()


@pytest.mark.spec("MQTT-3.1.4-6")
@pytest.mark.parametrize("version", [MQTT_311, MQTT_5])
async def test_a_refusal_arrives_although_the_client_has_sent_more(version: int) -> None:
    """Bytes that a client sends behind its CONNECT must not turn CONNACK 137 into a reset."""
    store = SlowStore()
    flow = {"connects_in_process_max": 1, "connect_buffer_max": 0}
    async with broker({"flow": flow}, store=store, calm=True) as running:
        store.open.clear()
        first = await open_wire(running)
        await first.send(connect_packet("first"))
        await until(lambda: running.node.guard.gate.in_process == 1)
        second = await open_wire(running, version)
        flood = publishes("t", 200, payload=bytes(1_000))
        await second.send(connect_packet("second", version), *flood)
        connack = await second.expect(Connack)
        if version == MQTT_5:
            assert connack.reason_code == ReasonCode.SERVER_BUSY
        else:
            assert connack.reason_code == ReasonCode.SERVER_UNAVAILABLE
        assert await second.receive() is None
        assert running.node.counters.publish_received == 0
        store.open.set()
        assert (await first.expect(Connack)).reason_code == 0
        await first.close()
        await second.close()


async def test_a_connect_that_waited_longer_than_its_patience_is_told_137() -> None:
    store = SlowStore()
    flow = {"connects_in_process_max": 1, "connect_patience_s": 0.2}
    async with broker({"flow": flow}, store=store, calm=True) as running:
        store.open.clear()
        first = await open_wire(running)
        await first.send(connect_packet("first"))
        await until(lambda: running.node.guard.gate.in_process == 1)
        second = await open_wire(running)
        await second.send(connect_packet("second"))
        assert (await second.expect(Connack)).reason_code == ReasonCode.SERVER_BUSY
        assert await second.receive() is None
        store.open.set()
        await first.expect(Connack)
        await first.close()
        await second.close()


async def test_a_client_that_leaves_the_buffer_gives_its_place_to_the_next() -> None:
    store = SlowStore()
    flow = {"connects_in_process_max": 1, "connect_buffer_max": 1}
    async with broker({"flow": flow}, store=store, calm=True) as running:
        store.open.clear()
        first, second, third = [await open_wire(running) for _ in range(3)]
        await first.send(connect_packet("first"))
        await until(lambda: running.node.guard.gate.in_process == 1)
        await second.send(connect_packet("second"))
        await until(lambda: running.node.guard.gate.buffered == 1)
        await second.close()
        await until(lambda: running.node.guard.gate.buffered == 0)
        await third.send(connect_packet("third"))
        await until(lambda: running.node.guard.gate.buffered == 1)
        store.open.set()
        for wire in (first, third):
            assert (await wire.expect(Connack)).reason_code == 0
        assert "second" not in running.node.registry.sessions
        await first.close()
        await third.close()


async def test_connected_clients_are_served_while_a_crowd_waits_outside() -> None:
    store = SlowStore()
    flow = {"connects_in_process_max": 1, "connect_patience_s": HANG_S}
    async with broker({"flow": flow}, store=store, calm=True) as running:
        inside = await connect(running, "inside")
        store.open.clear()
        waiting = [await open_wire(running) for _ in range(100)]
        for number, wire in enumerate(waiting):
            await wire.send(connect_packet(str(number)))
        await until(lambda: running.node.guard.gate.buffered == 99)
        await inside.send(Pingreq())
        await inside.expect(Pingresp)
        store.open.set()
        for wire in waiting:
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()
        await inside.close()


async def test_a_loop_that_does_not_get_to_run_knows_it() -> None:
    """It has work all the time, and stands still for most of it: refusing has to be as rare."""

    def stand_still(now_s: float, resident_bytes: int) -> None:
        time.sleep(0.2)
        shares.append(running.node.guard.observer.take(now_s, 0, 0).running_share)

    shares: list[float] = []
    async with broker(calm=True) as running:
        running.onlookers.append(stand_still)
        await until(lambda: len(shares) > 2)
        running.onlookers.clear()
    assert shares[-1] < 0.8
