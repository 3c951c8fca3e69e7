import pytest

from flowguard.session.outbound import backlog
from flowguard.stores import MemoryStore
from flowguard.types import MQTT_5, MQTT_311
from tests.support.on_disk import StoreOnDisk


@pytest.fixture(params=[MQTT_311, MQTT_5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """The test holds for both versions of the standard."""
    return int(request.param)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of three messages; a connected client has two messages of its backlog in memory."""
    monkeypatch.setattr(backlog, "HERE_MAX", 2)
    monkeypatch.setattr(backlog, "PAGE_MAX", 3)
    monkeypatch.setattr(backlog, "PAGE_BYTES_MAX", 2 * 1024)


@pytest.fixture(params=[MemoryStore, StoreOnDisk], ids=["memory", "disk"])
def store(request: pytest.FixtureRequest, small_pages: None) -> MemoryStore:
    """The test holds over a store in memory and over one that pages."""
    made = request.param()
    assert isinstance(made, MemoryStore)
    return made
