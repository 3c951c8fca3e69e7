"""Stored sessions and messages live as long as they should, even if the wall clock jumps.

1. While a process runs, only the time that passes counts.
2. Between two processes the time by the wall clock counts, if that is not negative.
3. A process that is killed loses at most `INTERVAL_S`, and nothing if the wall clock is right.
"""

import struct
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.app.stores import open_store
from flowguard.codec.packets import Connack
from flowguard.config import StoreSettings
from flowguard.errors import StoreError
from flowguard.records import Append, Delivery, PutRetained, PutSession
from flowguard.stores import Store
from flowguard.stores.clock import INTERVAL_S, StoreClock
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from store_tools.rocks.merge import merge
from store_tools.transfer import transfer
from tests.flowguard.stores.redis.benches import new_prefix, settings_for, shared_server
from tests.flowguard.stores.rocks.rows import crashed
from tests.support.patience import HANG_S
from tests.support.real import broker, connect_packet, open_wire, until

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S
JUMPS = [20 * YEAR_S, -20 * YEAR_S, 30 * DAY_S, -3_600.0]


class Machine:
    """The clocks of a machine."""

    def __init__(self, wall_s: float = 1_700_000_000.0) -> None:
        self.wall_s = wall_s
        self.monotonic_s = 5.0

    def pass_by(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def boot(self) -> None:
        self.monotonic_s = 0.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "jump", "restart"]), st.floats(-20 * YEAR_S, 20 * YEAR_S)
        )
    )
)
def test_time_passes_as_it_does_for_processes(steps: list[tuple[str, float]]) -> None:
    machine, stored = Machine(), None
    clock = StoreClock(None, lambda: machine.wall_s, lambda: machine.monotonic_s)
    expected_s = clock.now_s()
    for step, seconds in [("pass", 0.0), *steps]:
        if step == "jump":
            machine.wall_s += seconds
        else:
            machine.pass_by(abs(seconds))
            expected_s += abs(seconds)
        if step == "restart":
            machine.boot()
            clock = StoreClock(stored, lambda: machine.wall_s, lambda: machine.monotonic_s)
        assert clock.now_s() == pytest.approx(expected_s, abs=0.01)
        pair = clock.due()
        if pair is not None:
            clock.stored(pair)
            stored = pair
        assert clock.due() is None


def test_a_machine_without_a_battery_forgets_an_interval_at_most() -> None:
    machine, stored = Machine(), None
    clock = StoreClock(None, lambda: machine.wall_s, lambda: machine.monotonic_s)
    for _ in range(1_000):
        machine.pass_by(7.0)
        stored = clock.due() or stored
        if clock.due() is not None and stored is not None:
            clock.stored(stored)
    before_s = clock.now_s()
    machine.wall_s = 0.0
    machine.boot()
    clock = StoreClock(stored, lambda: machine.wall_s, lambda: machine.monotonic_s)
    assert before_s - INTERVAL_S - 7.0 <= clock.now_s() <= before_s


# --- in stores ----------------------------------------------------------------------------------


def put(store: Store) -> None:
    """A session, its message and a retained message, each with a life of a day."""
    assert store.clock is not None
    ends_s = store.clock() + DAY_S
    message = Publish("t", b"x", 1)
    store.commit([PutSession("c", int(DAY_S), ends_s), PutRetained(message, ends_s)])
    store.commit([Append("c", 1, Delivery(message, 1, False, (), ends_s))])


def lives_s(store: Store) -> list[float]:
    """How long each of them has still to live."""
    assert store.clock is not None
    (record,) = store.sessions()
    ((_, retained_s),) = store.retained()
    (entry,) = store.fetch("c", 0, 10)
    assert record.ends_at_s is not None
    assert entry.delivery is not None
    ends = [record.ends_at_s, retained_s, entry.delivery.expires_at_s]
    return [each_s - store.clock() for each_s in ends]


def on_rocks(folder: Path, machine: Machine) -> RocksStore:
    return RocksStore(
        folder,
        StoreSettings(),
        wall_s=lambda: machine.wall_s,
        random_node=lambda: 7,
        monotonic_s=lambda: machine.monotonic_s,
    )


def restarted(machine: Machine, down_s: float = 3_600.0) -> None:
    machine.pass_by(down_s)
    machine.boot()


@pytest.mark.parametrize("jump_s", JUMPS)
@pytest.mark.parametrize("killed", [False, True])
def test_lives_on_rocks_outlast_a_jump_and_a_restart(
    tmp_path: Path, jump_s: float, killed: bool
) -> None:
    machine, folder = Machine(), tmp_path / "store"
    store = on_rocks(folder, machine)
    store.maintain()
    put(store)
    machine.pass_by(600)
    machine.wall_s += jump_s
    store.maintain()
    if killed:
        folder = crashed(store, tmp_path / "copy")
    store.close()
    restarted(machine)
    with closing(on_rocks(folder, machine)) as store:
        assert lives_s(store) == pytest.approx([DAY_S - 4_200] * 3, abs=0.01)


def test_a_store_without_a_pair_begins_with_the_wall_clock(tmp_path: Path) -> None:
    machine = Machine()
    RocksStore(
        tmp_path / "store", StoreSettings(), wall_s=lambda: 1.0, random_node=lambda: 7
    ).close()
    with closing(on_rocks(tmp_path / "store", machine)) as store:
        assert store.clock is not None
        assert store.clock() == machine.wall_s


@pytest.mark.parametrize("jump_s", JUMPS)
def test_lives_are_the_same_in_a_copy_that_begins_with_the_wall_clock(
    tmp_path: Path, jump_s: float
) -> None:
    machine = Machine()
    with closing(on_rocks(tmp_path / "store", machine)) as store:
        put(store)
        machine.wall_s += jump_s
        with closing(on_rocks(tmp_path / "copy", machine)) as copy:
            transfer(store, copy)
            assert lives_s(copy) == pytest.approx([DAY_S] * 3, abs=1)


@pytest.mark.parametrize("jump_s", JUMPS)
def test_stores_whose_clocks_are_apart_are_not_merged(tmp_path: Path, jump_s: float) -> None:
    machine = Machine()
    with closing(on_rocks(tmp_path / "before", machine)) as store:
        put(store)
        machine.wall_s += jump_s
        store.maintain()
    with closing(on_rocks(tmp_path / "after", machine)) as store:
        put(store)
        store.maintain()
    folders = (tmp_path / "before", tmp_path / "after")
    for first, second in (folders, folders[::-1]):
        with pytest.raises(StoreError, match="s apart"):
            merge(first, second, tmp_path / "out", random_node=lambda: 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", JUMPS[:2])
def test_lives_in_redis_do_not_depend_on_the_clocks_of_brokers(
    jump_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(shared_server(), new_prefix(), lease_s=1.0)
    with closing(open_store(settings, tmp_path)) as store:
        store.maintain()
        put(store)
    wall_s = time.time
    monkeypatch.setattr("time.time", lambda: wall_s() + jump_s)  # Another machine.
    with closing(open_store(settings, tmp_path)) as store:
        assert lives_s(store) == pytest.approx([DAY_S] * 3, abs=HANG_S)


@pytest.mark.slow
def test_time_without_an_owner_counts_in_redis(tmp_path: Path) -> None:
    server, prefix = shared_server(), new_prefix()
    settings = settings_for(server, prefix, lease_s=1.0)
    with closing(open_store(settings, tmp_path)) as store:
        store.maintain()
        put(store)
    meta = f"{prefix}:meta"
    with server.client() as client:
        now_s, wall_s = struct.unpack(">dd", client.hget(meta, "clock"))
        client.hset(meta, "clock", struct.pack(">dd", now_s, wall_s - 3_600))
    with closing(open_store(settings, tmp_path)) as store:
        assert lives_s(store) == pytest.approx([DAY_S - 3_600] * 3, abs=HANG_S)


class Running(Machine):
    """The clocks of this machine, but the wall clock is ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    @property
    def wall_s(self) -> float:
        return time.time() + self.ahead_s

    @property
    def monotonic_s(self) -> float:
        return time.monotonic()


async def connects(folder: Path, machine: Running, jump_s: float) -> bool:
    """Whether a client finds its session; later the wall clock jumps, and the broker ends."""
    store = on_rocks(folder, machine)
    clock = store._clock
    assert clock is not None
    async with broker(store=store) as running:
        assert running.clock == store.clock
        wire = await open_wire(running)
        await wire.send(connect_packet("c", durable=True))
        connack = await wire.expect(Connack)
        machine.ahead_s += jump_s
        await until(lambda: abs(machine.wall_s - clock._stored_wall_s) < DAY_S)
        await wire.close()
    return connack.session_present


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", JUMPS[:2])
async def test_a_broker_keeps_a_session_over_a_jump_and_a_restart(
    tmp_path: Path, jump_s: float
) -> None:
    machine = Running()
    assert not await connects(tmp_path / "store", machine, jump_s)
    assert await connects(tmp_path / "store", machine, jump_s)
