"""A place that becomes free goes to a client that waits, not to those that have given up."""

from pathlib import Path

import pytest
import trio

from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import Rest
from flowguard.types import MQTT_5
from tests.flowguard.broker.test_descriptors import leaving, no_descriptor_left
from tests.support.real import Wire, broker, connect_packet, until

GONE = 60
RESTS_MAX = 5
"""Maximum number of rests, 100 ms each, until the live client has the place: not one for each that
has left."""


async def wire_to(doorway: Doorway) -> Wire:
    address = doorway.address
    if address.port is None:
        return Wire(await trio.open_unix_socket(address.host), MQTT_5)
    return Wire(await trio.open_tcp_stream(address.host, address.port), MQTT_5)


async def asking(doorway: Doorway, client_id: str) -> Wire:
    """A connection whose CONNECT is sent."""
    wire = await wire_to(doorway)
    await wire.send(connect_packet(client_id))
    return wire


async def leave(wires: list[Wire], *, resets: bool) -> None:
    """Close them, or reset them as a process that is killed with unread data."""
    for wire in wires:
        if resets:
            wire.stream.socket.setsockopt(
                trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
            )
        await wire.close()


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("bound", ["listener", "unix", "places"])
async def test_a_freed_place_goes_to_a_live_client_at_once(
    bound: str, resets: bool, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path / 'socket'}" if bound == "unix" else "127.0.0.1:0"
    listener = {"address": address} | ({} if bound == "places" else {"connections_max": 1})
    doors = open_doorways(NetworkSettings.model_validate({"listeners": [listener]}))
    async with broker(leaving(1) if bound == "places" else {}, listener=doors) as running:
        rests = running.node.door.rests
        reason = Rest.DESCRIPTORS if bound == "places" else Rest.LISTENER
        places = 1 if bound != "places" else running.node.door.places or 0
        inside = [await asking(doors[0], f"inside-{number}") for number in range(places)]
        for wire in inside:
            assert (await wire.expect(Connack)).reason_code == 0
        gone = [await asking(doors[0], f"gone-{number}") for number in range(GONE)]
        live = await asking(doors[0], "live")
        await until(lambda: rests[reason] > 0)
        await leave(gone, resets=resets)
        before = rests[reason]
        await inside.pop().close()
        assert (await live.expect(Connack)).reason_code == 0
        assert rests[reason] - before <= RESTS_MAX
        assert running.node.counters.connects_accepted == places + 1
        for wire in [*inside, live]:
            await wire.close()


async def test_a_freed_descriptor_goes_to_a_live_client_at_once() -> None:
    doors = open_doorways(NetworkSettings.model_validate({"listeners": ["127.0.0.1:0"]}))
    async with broker(listener=doors) as running:
        rests = running.node.door.rests
        inside = await asking(doors[0], "inside")
        assert (await inside.expect(Connack)).reason_code == 0
        sockets = [trio.socket.socket() for _ in range(GONE + 1)]
        with no_descriptor_left():
            wires = []
            for number, sock in enumerate(sockets):
                assert doors[0].address.port is not None
                await sock.connect(("127.0.0.1", doors[0].address.port))
                wire = Wire(trio.SocketStream(sock), MQTT_5)
                await wire.send(connect_packet(f"c{number}"))
                wires.append(wire)
            await until(lambda: rests[Rest.DESCRIPTORS] > 0)
            *gone, live = wires
            for wire in gone:
                await wire.stream.send_eof()  # To close it would free a descriptor.
        assert (await live.expect(Connack)).reason_code == 0
        assert running.node.counters.connects_accepted == 2
        await leave([inside, *wires], resets=False)


async def test_a_client_that_sends_and_leaves_is_served_when_the_listener_has_not_rested() -> None:
    """It never waited for a place, so it has not given up."""
    doors = open_doorways(NetworkSettings.model_validate({"listeners": ["127.0.0.1:0"]}))
    async with broker(listener=doors) as running:
        wire = await asking(doors[0], "brief")
        await wire.close()
        await until(lambda: running.node.counters.connects_accepted == 1)
