"""Settings and data that do not fit in the memory limit are named at the start, with a remedy."""

from pathlib import Path

import pytest

from flowguard.codec.packets import Puback
from flowguard.types import MQTT_311, Publish
from tests.flowguard.cli.test_serve import Caller, refused
from tests.interop.broker import running_broker

MIB = 1024 * 1024


def limited(folder: Path, limit_bytes: int) -> str:
    """The path of a configuration with this limit."""
    path = folder / f"{limit_bytes}.toml"
    path.write_text(f"[flow]\nmemory_max_bytes = {limit_bytes}\n")
    return str(path)


@pytest.mark.slow
def test_bounds_that_are_more_than_the_limit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "flowguard.toml"
    path.write_text(
        f"[flow]\nmemory_max_bytes = {256 * MIB}\n[node]\nqueue_bytes_max = {512 * MIB}\n"
    )
    code, complaint = refused("--config", str(path), "--data", str(tmp_path / "data"))
    assert code == 2
    assert "node.queue_bytes_max 536,870,912" in complaint
    assert "flow.memory_max_bytes" in complaint


@pytest.mark.slow
def test_what_is_stored_and_does_not_fit_is_named(tmp_path: Path) -> None:
    """The broker does not start and then reject all clients."""
    with (
        running_broker(tmp_path, "--config", limited(tmp_path, 256 * MIB)) as broker,
        Caller(broker, MQTT_311) as caller,
    ):
        caller.read()
        for number in range(1, 81):
            caller.send(Publish(f"kept/{number}", bytes(100_000), 1, True, packet_id=number))
            assert isinstance(caller.read(), Puback)
        broker.terminate()
    data = tmp_path / "data"
    code, complaint = refused("--config", limited(tmp_path, 116 * MIB), "--data", str(data))
    assert code == 2
    assert "80 retained messages" in complaint
    assert "Raise flow.memory_max_bytes" in complaint
    with (
        running_broker(tmp_path, "--config", limited(tmp_path, 256 * MIB)) as broker,
        Caller(broker, MQTT_311, "newcomer") as caller,
    ):
        caller.read()
        broker.terminate()
