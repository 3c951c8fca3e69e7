"""Out of file descriptors: connected clients are served, new ones wait, and nothing spins."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from flowguard.broker.logs.error_log import SHOWN_MAX
from flowguard.broker.server import listen
from flowguard.broker.sockets.descriptors import OPEN_FILES, descriptors_for, widen_table
from flowguard.broker.sockets.listeners import SILENT_S
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.codec.packets import Connack, Disconnect
from flowguard.config import Settings
from flowguard.errors import ConfigError
from flowguard.flow import Reason
from flowguard.flow.load.signals import TICK_S
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import Rest
from flowguard.ops.status import status_of
from flowguard.types import MQTT_5
from tests.support.real import Wire, broker, connect, connect_packet, open_wire, until


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Lower the soft limit to what is open already."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class CountingListener(socket.socket):
    """A listening socket that counts the attempts to accept."""

    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        return super().accept()


async def test_clients_beyond_the_last_descriptor_wait_and_get_in_once_there_is_one() -> None:
    listener = CountingListener(fileno=listen("127.0.0.1", 0).detach())
    async with broker(listener=listener) as running:
        inside = await connect(running, "inside")
        knocking = []
        for number in range(5):
            sock = trio.socket.socket()
            knocking.append((f"c{number}", sock))
        with no_descriptor_left():
            wires = []
            for client_id, sock in knocking:
                await sock.connect(running.address)  # By the kernel; it is not accepted yet.
                wire = Wire(trio.SocketStream(sock), 5)
                await wire.send(connect_packet(client_id))
                wires.append(wire)
            await until(lambda: listener.tries > 4)  # Each tick tries again.
            before = listener.tries
            for _ in range(100):
                await inside.ping()
            assert listener.tries - before < 100, "the listener spins instead of resting"
            assert running.node.connections_count == 1
        for wire in wires:
            assert (await wire.expect(Connack)).reason_code == 0
            await wire.close()
        await inside.close()


async def test_a_peer_that_resets_before_it_is_accepted_harms_nobody() -> None:
    async with broker() as running:
        for _ in range(200):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                sock.connect(running.address)
        client = await connect(running, "c")
        await until(lambda: running.node.connections_count == 1)
        await client.close()


# --- the reserve -----------------------------------------------------------------------------


def leaving(places: int) -> dict[str, dict[str, Any]]:
    """Settings that leave `places` descriptors for clients, now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir(OPEN_FILES))
    # The two are the listener that `broker` makes, and the reactor's set and wake-up.
    return {"node": {"descriptors_reserve": limit - used - places - 3}}


async def test_accepting_stops_before_the_reserve_and_goes_on_where_somebody_leaves() -> None:
    async with broker(leaving(5)) as running:
        places = running.node.door.places
        assert places == 5
        inside = [await connect(running, f"inside-{number}") for number in range(places)]
        outside = await open_wire(running)
        await outside.send(connect_packet("outside"))
        door = running.node.door
        await until(lambda: door.rests[Rest.DESCRIPTORS] > 2)
        assert running.node.connections_count == places
        status = status_of(running.node, 0.0)["listener"]
        assert status["connections"] == {"used": places, "limit": places}
        assert status["rests"]["descriptors"] > 0
        await inside.pop().close()
        assert (await outside.expect(Connack)).reason_code == 0
        for wire in [*inside, outside]:
            await wire.close()


async def test_who_says_nothing_makes_room_for_who_does() -> None:
    """A silent connection has ten seconds for its CONNECT only while no other client needs its
    slot."""
    async with broker(leaving(5) | {"flow": {"connect_timeout_s": 3_600}}) as running:
        silent = [await open_wire(running) for _ in range(50)]
        client = await connect(running, "client")
        assert running.node.counters.dropped[Reason.DESCRIPTORS] > 0
        await client.ping()
        for wire in [*silent, client]:
            await wire.close()


async def wire_to(doorway: Doorway) -> Wire:
    """A connection to this listener that has said nothing yet."""
    address = doorway.address
    assert address.port is not None
    return Wire(await trio.open_tcp_stream(address.host, address.port), MQTT_5)


async def test_who_says_nothing_makes_room_at_its_listener() -> None:
    """Silent connections may stay at a listener that has free slots."""
    few = {"address": "127.0.0.1:0", "connections_max": 2}
    network = NetworkSettings.model_validate({"listeners": ["127.0.0.1:0", few]})
    wide, narrow = doors = open_doorways(network)
    async with broker({"flow": {"connect_timeout_s": 3_600}}, listener=doors) as running:
        elsewhere = await wire_to(wide)
        silent = [await wire_to(narrow) for _ in range(3)]
        client = await wire_to(narrow)
        for wire, name in ((client, "client"), (elsewhere, "elsewhere")):
            await wire.send(connect_packet(name))
            assert (await wire.expect(Connack)).reason_code == 0
        assert running.node.counters.dropped[Reason.DESCRIPTORS] > 0
        for wire in [*silent, elsewhere, client]:
            await wire.close()


async def test_nobody_makes_room_for_who_waits_at_a_listener_that_is_full() -> None:
    """All places are taken, too; one that becomes free elsewhere would be of no use here."""
    few = {"address": "127.0.0.1:0", "connections_max": 2}
    network = NetworkSettings.model_validate({"listeners": ["127.0.0.1:0", few]})
    wide, narrow = doors = open_doorways(network)
    settings = leaving(3) | {"flow": {"connect_timeout_s": 3_600}}
    async with broker(settings, listener=doors) as running:
        door = running.node.door
        assert door.places is not None
        inside = [await wire_to(narrow) for _ in range(2)]
        for number, wire in enumerate(inside):
            await wire.send(connect_packet(f"inside-{number}"))
            assert (await wire.expect(Connack)).reason_code == 0
        silent = [await wire_to(wide) for _ in range(door.places - 2)]
        await until(lambda: running.node.connections_count == door.places)
        outside = await wire_to(narrow)
        await until(lambda: sum(door.rests.values()) > 2 * SILENT_S / TICK_S)
        assert Reason.DESCRIPTORS not in running.node.counters.dropped
        for wire in [*inside, *silent, outside]:
            await wire.close()


async def test_who_is_in_makes_room_for_nobody() -> None:
    async with broker(leaving(5)) as running:
        inside = [await connect(running, f"inside-{number}") for number in range(4)]
        silent = [await open_wire(running) for _ in range(20)]
        client = await connect(running, "client")
        for wire in inside:
            await wire.ping()
        for wire in [*silent, *inside, client]:
            await wire.close()


def test_a_limit_that_leaves_no_client_a_place_is_refused_with_what_to_do() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = Settings.model_validate({"node": {"descriptors_reserve": limit}})
    with pytest.raises(ConfigError, match=r"node\.descriptors_reserve.*ulimit -n"):
        descriptors_for(settings, on_disk=False)


def test_the_tables_of_a_store_are_reserved_where_it_has_some() -> None:
    settings = Settings()
    memory, disk = (descriptors_for(settings, on_disk=on_disk) for on_disk in (False, True))
    assert memory.places - disk.places == settings.store.open_files_max


# --- housekeeping ----------------------------------------------------------------------------


async def test_nothing_that_breaks_in_housekeeping_ends_the_broker() -> None:
    def breaks(now_s: float, resident_bytes: int) -> None:
        ticks.append(now_s)
        raise OSError(errno.EMFILE, "Too many open files")

    ticks: list[float] = []
    seen: list[int] = []
    with capture_logs() as lines:
        async with broker() as running:
            running.onlookers += [breaks, lambda now_s, resident_bytes: seen.append(len(ticks))]
            client = await connect(running, "c", keep_alive_s=1)
            assert await client.expect(Disconnect)  # Deadlines are looked at, too.
            await until(lambda: len(ticks) > SHOWN_MAX and len(seen) >= len(ticks))
            assert running.node.counters.errors >= len(ticks)
            await client.close()
    shown = [line for line in lines if line["event"] == "tick failed"]
    assert 0 < len(shown) <= 2 * SHOWN_MAX


def table_size(pid: str = "self") -> int:
    """Return the size of the kernel's table of descriptors of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("FDSize:")[2].split()[0])


def test_the_table_of_descriptors_is_made_wide_at_once_and_as_wide_as_it_may_be() -> None:
    """A new connection does not wait until the table has grown."""
    before = set(os.listdir(OPEN_FILES))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    widen_table(min(5_000, limit))
    assert table_size() >= min(5_000, limit)
    widen_table(10**9)
    assert table_size() >= limit
    assert set(os.listdir(OPEN_FILES)) == before


async def test_a_broker_has_room_in_it_for_all_who_may_come() -> None:
    async with broker() as running:
        places = running.node.door.places
        assert places is not None
        assert table_size() >= places
