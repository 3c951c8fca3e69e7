"""The process stands still while clients speak: what lies in its sockets is read first.

The clock of the broker is set forward while its clients' bytes are in the kernel, which is what a
stopped process sees when it goes on.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Pingreq, Pingresp
from flowguard.node.loop.turns import EVENTS_MAX
from flowguard.types import MQTT_5
from tests.flowguard.broker.clock import Clock
from tests.interop.broker import PATIENCE_S, running_broker
from tests.support.real import Wire, broker, connect, connect_packet, open_wire, until

CROWD = 2 * EVENTS_MAX + 1
"""More than a turn reads."""


def send_at_once(wires: list[Wire], packets: Iterator[bytes]) -> None:
    """Into the sockets, before the broker can do anything."""
    for wire, data in zip(wires, packets, strict=True):
        assert wire.stream.socket.fileno() >= 0
        sock = socket.socket(fileno=os.dup(wire.stream.socket.fileno()))
        with sock:
            assert sock.send(data) == len(data)


async def test_every_connect_that_came_during_a_pause_is_answered(clock: Clock) -> None:
    """A few times: which task runs first after a pause is drawn."""
    flow = {"connects_in_process_max": 2 * CROWD}
    async with broker({"flow": flow}, calm=True) as running:
        for attempt in range(4):
            wires = [await open_wire(running) for _ in range(CROWD)]
            await until(lambda wires=wires: running.node.connections_count == len(wires))
            connects = (
                encode(connect_packet(f"{attempt}-{number}"), MQTT_5) for number in range(CROWD)
            )
            send_at_once(wires, connects)
            clock.jump()
            for wire in wires:
                assert (await wire.expect(Connack)).reason_code == 0
                await wire.close()
            await until(lambda: running.node.connections_count == 0)


async def test_nobody_was_silent_whose_ping_came_during_a_pause(clock: Clock) -> None:
    async with broker(calm=True) as running:
        wires = [await connect(running, str(number), keep_alive_s=60) for number in range(CROWD)]
        for _ in range(4):
            send_at_once(wires, (encode(Pingreq(), MQTT_5) for _ in wires))
            clock.jump()
            for wire in wires:
                await wire.expect(Pingresp)
        for wire in wires:
            await wire.close()


async def test_who_says_nothing_is_late_though_everybody_else_never_stops(clock: Clock) -> None:
    """More are ready at any time than a turn serves: it is a lap over all of them that counts."""
    async with broker(calm=True) as running:
        silent = await open_wire(running)
        wires = [await connect(running, str(number)) for number in range(CROWD)]
        clock.jump()
        ping = encode(Pingreq(), MQTT_5)

        async def talk(wire: Wire) -> None:
            while True:
                await wire.stream.send_all(ping)
                await wire.stream.receive_some(4_096)

        async with trio.open_nursery() as nursery:
            for wire in wires:
                nursery.start_soon(talk, wire)
            assert await silent.receive() is None
            nursery.cancel_scope.cancel()
        for wire in [silent, *wires]:
            await wire.close()


@pytest.mark.slow
def test_a_stopped_process_answers_who_asked_meanwhile(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_FLOW__CONNECT_TIMEOUT_S": "5"}
    with running_broker(tmp_path, environment=environment) as running, ExitStack() as sockets:
        address = (running.host, running.port)
        socks = [sockets.enter_context(socket.create_connection(address)) for _ in range(200)]
        last = sockets.enter_context(socket.create_connection(address, PATIENCE_S))
        last.sendall(encode(connect_packet("last"), MQTT_5))
        assert last.recv(4, socket.MSG_WAITALL)[3:] == b"\0"  # So all others are accepted, too.
        running.process.send_signal(signal.SIGSTOP)
        for number, sock in enumerate(socks):
            sock.settimeout(PATIENCE_S)
            sock.sendall(encode(connect_packet(str(number)), MQTT_5))
        time.sleep(6)  # The broker may not take it for silence of the clients.
        running.process.send_signal(signal.SIGCONT)
        for sock in socks:
            assert sock.recv(4, socket.MSG_WAITALL)[3:] == b"\0"
