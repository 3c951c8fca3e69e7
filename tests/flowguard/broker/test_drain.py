"""The end of a broker: reject new work, finish work in process, send DISCONNECT to all, exit."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest
import trio
from structlog.testing import capture_logs

from flowguard.broker import server
from flowguard.broker.server import Running
from flowguard.codec.packets import Auth, Connack, Disconnect, Puback
from flowguard.errors import StoreError
from flowguard.flow.verdict import Reason
from flowguard.node.connect.authentication import Hooks
from flowguard.stores import Fenced
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode
from tests.interop.broker import address_in
from tests.support.authentication import TwoSteps
from tests.support.patience import HANG_S
from tests.support.real import (
    TEST_S,
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


async def listening_ends(running: Running) -> None:
    """Until the kernel refuses new connections."""

    def is_refused() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(running.address) != 0

    await until(is_refused)


async def told_to_leave(wire: Wire) -> None:
    if wire.version == MQTT_5:
        assert (await wire.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
    assert await wire.receive() is None
    await wire.close()


class Awaited(SlowStore):
    """A store that another broker waits for."""

    lease_s: float | None = HANG_S

    def __init__(self) -> None:
        super().__init__()
        self.at_close: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.at_close()
        super().close()


async def test_store_that_another_broker_waits_for_is_closed_before_slow_clients() -> None:
    store, open_counts = Awaited(), list[int]()
    async with broker(store=store) as running:
        await offline_subscriber(running, "t")
        wire = await connect(running, "slow")
        await wire.send(Publish("t", b"kept", 1, packet_id=1))
        await wire.expect(Puback)
        store.at_close = lambda: open_counts.append(len(running.reactor.sockets.links))
        running.stop.set()
        assert (await wire.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        await until(lambda: bool(open_counts))
        assert open_counts[0] > 0
        await wire.close()
    assert len(list(store.sessions())) == 1


async def test_connected_clients_are_told_and_new_ones_are_refused() -> None:
    with capture_logs() as lines:
        async with broker() as running:
            wires = [await connect(running, f"{v}", v) for v in (MQTT_311, MQTT_5)]
            running.node.counters.dropped[Reason.MESSAGE_EXPIRED] = 1
            running.stop.set()
            for wire in wires:
                await told_to_leave(wire)
            await listening_ends(running)
    (line,) = [line for line in lines if line["event"] == "drained"]
    assert (line["clients_disconnected"], line["messages_dropped_or_rejected_since_start"]) == (
        2,
        1,
    )


async def test_what_is_in_process_is_finished_and_acknowledged_first() -> None:
    store = SlowStore()
    async with broker(store=store, calm=True) as running:
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p", receive_maximum=10)
        store.open.clear()
        await publisher.send(*publishes("t", 10))
        await publisher.ping()
        running.stop.set()
        await listening_ends(running)
        store.open.set()
        for number in range(1, 11):
            assert (await publisher.expect(Puback)).packet_id == number
        await told_to_leave(publisher)


@pytest.mark.spec("MQTT-3.2.2-8")
async def test_who_is_still_authenticating_is_told_what_a_connack_may_say() -> None:
    async with broker(hooks=Hooks(methods={"steps": TwoSteps})) as running:
        wire = await open_wire(running)
        await wire.send(connect_packet("c", authentication_method="steps"))
        await wire.expect(Auth)
        running.stop.set()
        assert await wire.expect(Connack) == Connack(False, ReasonCode.SERVER_UNAVAILABLE)
        assert await wire.receive() is None
        await wire.close()


async def test_connects_in_process_are_answered_and_those_that_wait_are_refused() -> None:
    store = SlowStore()
    told: list[str] = []
    async with broker({"flow": {"connects_in_process_max": 1}}, store=store) as running:
        running.node.on_turned_away = lambda connection, reason, why: told.append(why)
        store.open.clear()
        first, second, late = [await open_wire(running) for _ in range(3)]
        await first.send(connect_packet("first"))
        await until(lambda: running.node.guard.gate.in_process == 1)
        await second.send(connect_packet("second"))
        await until(lambda: running.node.guard.gate.buffered == 1)
        running.stop.set()
        assert (await second.expect(Connack)).reason_code == ReasonCode.SERVER_UNAVAILABLE
        assert await second.receive() is None
        await late.send(connect_packet("late"))
        assert (await late.expect(Connack)).reason_code == ReasonCode.SERVER_UNAVAILABLE
        assert told == ["the broker drains: it accepts no new clients"] * 2
        store.open.set()
        assert (await first.expect(Connack)).reason_code == 0
        await told_to_leave(first)
        await second.close()
        await late.close()


async def test_clients_that_flood_until_the_end_are_told_like_everybody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are never quiet by themselves, and what they sent last must not become a reset."""
    monkeypatch.setattr(server, "FAREWELL_S", TEST_S)  # Each has the time to read all of it.
    async with broker({"node": {"drain_s": 1.0}}) as running:
        wires = [await connect(running, f"p{number}") for number in range(3)]
        subscriber = await connect(running, "s")
        await subscriber.subscribe("t", 0)
        flood = publishes("t", 10_000, qos=0)

        async def publish(wire: Wire) -> None:
            try:
                while True:
                    await wire.send(*flood)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # It went on after the broker's last word, and past the end.

        async def told(wire: Wire) -> None:
            packet = await wire.receive()
            while isinstance(packet, Publish):
                packet = await wire.receive()
            assert isinstance(packet, Disconnect)
            assert packet.reason_code == ReasonCode.SERVER_SHUTTING_DOWN

        async with trio.open_nursery() as nursery:
            for wire in wires:
                nursery.start_soon(publish, wire)
            await until(lambda: running.node.counters.publish_received > 10_000)
            running.stop.set()
            for wire in (*wires, subscriber):
                await told(wire)
                await wire.close()
            nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_does_not_keep_the_broker() -> None:
    async with broker({"node": {"drain_s": 0.2}}) as running:
        deaf = await connect(running, "c")
        await deaf.subscribe("t", 0)
        publisher = await connect(running, "p")
        outbound = running.node.registry.sessions["c"].outbound
        while not outbound.outbox.blocked:
            await publisher.publish("t", bytes(50_000))
        running.stop.set()
        await told_to_leave(publisher)
    await deaf.close()


async def test_a_store_that_fails_ends_the_broker_and_acknowledges_nothing() -> None:
    class FailingStore(SlowStore):
        fails = False

        def commit(self, ops: object) -> Fenced:
            if self.fails:
                raise StoreError("no space left")
            return super().commit(ops)  # type: ignore[arg-type]

    store = FailingStore()
    publisher = None
    with pytest.RaisesGroup(StoreError, flatten_subgroups=True, allow_unwrapped=True):
        async with broker(store=store) as running:
            await offline_subscriber(running, "t")
            publisher = await connect(running, "p")
            store.fails = True
            await publisher.send(*publishes("t", 1))
            await trio.sleep_forever()
    assert publisher is not None
    try:
        assert await publisher.receive() is None
    except trio.BrokenResourceError:
        pass  # A broker that fails sends no DISCONNECT.
    await publisher.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_drains_on_a_signal_and_exits_with_zero(
    number: signal.Signals, tmp_path: object
) -> None:
    command = [sys.executable, "-m", "flowguard", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:")
        with socket.create_connection(("127.0.0.1", address_in(line)[1])) as sock:
            sock.sendall(b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c")
            received = sock.recv(1_024)
            assert received[:1] == b"\x20"
            os.kill(process.pid, number)
            goodbye = sock.recv(1_024)
            assert goodbye[:3] == b"\xe0\x02\x8b" or goodbye[2:3] == b"\x8b"
            assert sock.recv(1_024) == b""
        assert process.wait(TEST_S) == 0
