"""`build_broker`: which capacity it reports as lacking, and that a failed broker holds nothing."""

import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

import flowguard
from flowguard.app.broker import build_broker
from flowguard.app.http_front import HttpPort
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.config import Settings, TelemetrySettings
from flowguard.errors import ConfigError, CorruptionError
from flowguard.stores import MemoryStore
from flowguard.stores.base import StoreLoad
from flowguard.telemetry.runs import Runs
from tests.support.real import TEST_S


class UnreadableStore(MemoryStore):
    def load(self) -> StoreLoad:
        raise CorruptionError("cannot be read")


def settings_of(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


@pytest.mark.parametrize("asked", [None, 1_000_000])
def test_capacity_is_lacking_only_if_the_settings_ask_for_it(
    tmp_path: Path, asked: int | None
) -> None:
    settings = settings_of(
        node={"connections_max": asked, "descriptors_reserve": open_files_max() - 500},
        flow={"memory_max_bytes": 16 * 1024**3},
    )
    with capture_logs() as logs:
        parts = build_broker(bounds_of(settings), data=tmp_path, store=MemoryStore(), listeners=[])
    lacking = [line["why"] for line in logs if line["event"] == "capacity lacking"]
    assert len(lacking) == (asked is not None)
    assert parts.descriptors.places < parts.bounds.connections_max


def open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_store_in_memory_reserves_no_descriptors_whatever_the_settings_name(
    tmp_path: Path,
) -> None:
    settings = settings_of(store={"kind": "rocks"})
    parts = build_broker(bounds_of(settings), data=tmp_path, store=MemoryStore(), listeners=[])
    assert parts.descriptors.reserve == settings.node.descriptors_reserve


async def test_a_broker_that_is_not_built_records_no_longer(tmp_path: Path) -> None:
    sections = {"telemetry": {"record_dir": tmp_path}, "http": {"token_file": tmp_path / "none"}}
    with pytest.raises(ConfigError, match="none"):
        async with flowguard.open_broker(sections):
            raise AssertionError
    Runs(tmp_path, TelemetrySettings()).close()


async def test_a_broker_that_fails_to_start_closes_recording_and_http(tmp_path: Path) -> None:
    settings = settings_of(telemetry={"record_dir": tmp_path})
    http = HttpPort("127.0.0.1", 0, is_required=True)
    store = UnreadableStore()
    parts = build_broker(bounds_of(settings), data=tmp_path, store=store, listeners=[], http=http)
    assert parts.http.listener is not None
    with trio.fail_after(TEST_S), pytest.raises(CorruptionError):
        await parts.run()
    assert parts.http.listener.fileno() < 0
    Runs(tmp_path, TelemetrySettings()).close()


async def test_a_broker_that_ran_closes_its_recording_once(tmp_path: Path) -> None:
    with trio.fail_after(TEST_S):
        async with flowguard.open_broker({"telemetry": {"record_dir": tmp_path}}):
            pass
        Runs(tmp_path, TelemetrySettings()).close()


class WatchedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.closed = trio.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


async def test_sockets_and_store_are_closed_before_a_slow_service_ends() -> None:
    """A recorder may need half a minute: clients must reach a stand-by meanwhile."""
    store, listener, seen = WatchedStore(), listen("127.0.0.1", 0), list[bool]()

    async def service(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(5.0, shield=True):
                await store.closed.wait()
            seen.append(store.closed.is_set() and listener.fileno() < 0)

    async def start(running: Running, nursery: trio.Nursery) -> None:
        await nursery.start(service)

    async with trio.open_nursery() as nursery:
        run = partial(serve, bounds_of(Settings()), store, listener, start_services=start)
        running = await nursery.start(run)
        running.stop.set()
    assert seen == [True]
