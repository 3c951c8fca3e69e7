"""The settings of one of several workers."""

import pytest

from flowguard.app.workers.shares import share_of, workers_of
from flowguard.bounds import PROCESS_BYTES
from flowguard.config import MIB, Settings
from flowguard.errors import ConfigError

MEMORY_BYTES = 4_096 * MIB


def share(count: int = 4, **sections: object) -> Settings:
    return share_of(Settings.model_validate(sections), count, 1, MEMORY_BYTES, None)


def test_workers_together_have_no_more_than_is_configured() -> None:
    listener = {"address": "127.0.0.1:1883", "connections_max": 10}
    found = share(
        node={"connections_max": 1_001, "queue_bytes_max": 80 * MIB},
        network={"listeners": [listener]},
        telemetry={"record_dir": "runs"},
    )
    assert 4 * (found.flow.memory_max_bytes or 0) == MEMORY_BYTES - PROCESS_BYTES
    assert found.node.connections_max == 250
    assert found.node.queue_bytes_max == 20 * MIB
    assert found.network.listeners[0].connections_max == 2
    assert str(found.telemetry.record_dir) == "runs/worker-1"


def test_defaults_that_follow_from_the_memory_limit_stay_open() -> None:
    found = share()
    assert found.node.connections_max is None
    assert "journal_bytes_max" not in found.flow.model_fields_set
    assert found.flow.unfinished_max == Settings().flow.unfinished_max // 4


def test_disk_is_shared() -> None:
    found = share_of(Settings(), 4, 0, MEMORY_BYTES, 400 * MIB)
    assert found.node.disk_queue_bytes_max == 100 * MIB


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"node": {"connections_max": 3}}, "node.connections_max: 3 cannot be divided"),
        ({"node": {"queue_bytes_max": 2 * MIB}}, "node.queue_bytes_max: for each of 4 workers"),
        (
            {"network": {"listeners": [{"address": "[::1]:1", "connections_max": 1}]}},
            "connections_max of",
        ),
    ],
)
def test_total_that_is_too_small_is_named(sections: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint.replace(".", r"\.")):
        share(4, **sections)


@pytest.mark.parametrize(
    "store", [{"kind": "redis"}, {"kind": "rocks", "application_store": "kafka"}]
)
def test_stores_of_one_process_need_one_worker(store: dict[str, str]) -> None:
    settings = Settings.model_validate({"node": {"workers": 2}, "store": store})
    with pytest.raises(ConfigError, match=r"node\.workers"):
        workers_of(settings)


def test_auto_is_one_worker_per_core() -> None:
    assert workers_of(Settings.model_validate({"node": {"workers": "auto"}})) >= 1
    assert workers_of(Settings()) == 1
