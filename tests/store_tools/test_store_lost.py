"""A broker whose store is removed, damaged, or short of descriptors says so and lies to nobody."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

import pytest

from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.attacks.attack import CannotRun
from tests.attacks.disk import small_disk
from tests.flowguard.cli.test_serve import Caller, refused
from tests.flowguard.stores.rocks.damage import change_byte
from tests.interop.broker import PATIENCE_S, Broker, running_broker

STORE = 73
DURABLE = {"clean_start": False, "properties": Properties(session_expiry_interval=3_600)}
pytestmark = pytest.mark.slow


def subscriber(broker: Broker) -> Caller:
    caller = Caller(broker, client_id="s", **DURABLE)
    assert isinstance(caller.read(), Connack)
    return caller


def with_subscription(broker: Broker) -> None:
    with subscriber(broker) as caller:
        caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
        assert isinstance(caller.read(), Suback)


def publisher(broker: Broker) -> Caller:
    caller = Caller(broker, client_id="p")
    assert isinstance(caller.read(), Connack)
    return caller


def publish(caller: Caller, number: int, size_bytes: int = 10) -> bool:
    """Whether it was acknowledged."""
    try:
        payload = number.to_bytes(4, "big") + bytes(size_bytes)
        caller.send(Publish("t", payload, 1, packet_id=number % 65_535 + 1))
        return isinstance(caller.read(), Puback)
    except ConnectionError:
        return False


def remove(folder: Path) -> None:
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)  # RocksDB makes files meanwhile.


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_acknowledged_after_the_data_directory_is_removed(
    tmp_path: Path, busy: bool
) -> None:
    with running_broker(tmp_path, exit_code=STORE) as broker:
        with_subscription(broker)
        with publisher(broker) as caller:
            assert all(publish(caller, number) for number in range(20))
            remove(tmp_path / "data")
            if busy:
                assert not any(publish(caller, number) for number in range(100))
            broker.process.wait(PATIENCE_S)
        said = broker.log.read_text()
    assert f"{tmp_path / 'data'} was removed while it was in use" in said
    assert "flowguard serve --data COPY" in said


@contextmanager
def no_descriptor_left(broker: Broker) -> Iterator[None]:
    before = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, before)


def test_what_waits_is_delivered_when_files_can_be_opened_again(tmp_path: Path) -> None:
    count = 400
    with running_broker(tmp_path) as broker:
        with_subscription(broker)
        with publisher(broker) as caller:
            assert all(publish(caller, number, 5_000) for number in range(count))
    with (
        running_broker(tmp_path) as broker,
        publisher(broker) as other,
        subscriber(broker) as caller,
    ):
        with no_descriptor_left(broker):
            for number in range(count, count + 20):
                assert publish(other, number)
        found: list[int] = []
        while len(found) < count + 20:
            packet = caller.read()
            assert isinstance(packet, Publish)
            found.append(int.from_bytes(packet.payload[:4], "big"))
            caller.send(Puback(packet.packet_id))
    assert found == list(range(count + 20))


def test_a_damaged_store_is_refused_in_two_lines(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with_subscription(broker)
    (manifest,) = (tmp_path / "data").glob("MANIFEST-*")
    change_byte(manifest, manifest.stat().st_size // 2)
    code, said = refused("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert code == STORE
    assert "Corruption" in said
    assert "flowguard serve --data COPY" in said.splitlines()[-1]
    assert "flowguard store salvage" in said.splitlines()[-1]


def test_a_disk_without_a_byte_left_is_named_with_what_to_do(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path) as folder:
            room = {"FLOWGUARD_STORE__DISK_RESERVE_BYTES": "1048576"}
            with running_broker(folder, environment=room, exit_code=-SIGKILL) as broker:
                with_subscription(broker)
                broker.process.kill()  # What it has in memory has to be written at the start.
                broker.process.wait(PATIENCE_S)
            fill(folder / "others")
            code, said = refused("--listen", "127.0.0.1:0", "--data", str(folder / "data"))
    except CannotRun as reason:
        pytest.skip(str(reason))
    assert code == STORE
    assert "No space left" in said
    assert "Free space on its disk, then start again" in said.splitlines()[-1]


def fill(path: Path) -> None:
    """Take what is left of its disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4_096)):
            pass
