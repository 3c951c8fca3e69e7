"""`flowguard capacity`: the limits of this machine, with measured rates."""

import json
import resource
from pathlib import Path

import pytest

from flowguard.bounds import Bounds
from flowguard.broker.sockets.descriptors import Descriptors
from flowguard.cli.capacity.command import _table
from flowguard.cli.capacity.estimate import Capacity, Rates, capacity_of
from flowguard.config import Settings
from tests.flowguard.cli.test_identities import passwd
from tests.flowguard.cli.test_manners import run_in
from tests.flowguard.cli.test_reload import flowguard
from tests.support.authority import Authority

MIB = 1024 * 1024


def estimated(
    descriptors: int, workers: int = 1, *, has_tls: bool = False, **node: int
) -> Capacity:
    bounds = Bounds.of(Settings.model_validate({"node": node}), 1_024 * MIB)
    return capacity_of(
        bounds,
        Descriptors(descriptors, 50, 600),
        Rates(connects=1_000.0, handshakes=100.0, passwords=None),
        memory_bytes=workers * 1_024 * MIB,
        workers=workers,
        cores=2,
        has_tls=has_tls,
    )


def test_the_scarcest_resource_is_the_first_limit() -> None:
    few = estimated(10_650)
    assert (few.clients, few.ends_first) == (10_000, "descriptors")
    assert "The first limit is descriptors, at 10,000 clients: raise ulimit -n" in few.sentence
    many = estimated(1_000_000)
    assert many.clients == many.memory_clients < many.descriptors_clients
    assert "raise flow.memory_max_bytes for more" in many.sentence
    chosen = estimated(1_000_000, connections_max=7)
    assert (chosen.clients, chosen.ends_first) == (7, "node.connections_max")
    assert "at 7 clients: raise node.connections_max for more" in chosen.sentence


def test_a_reconnect_takes_the_work_of_all_clients() -> None:
    assert estimated(10_650).reconnect_s == pytest.approx(10_000 / 1_000)
    assert estimated(10_650, has_tls=True).reconnect_s == pytest.approx(10_000 * 0.011)
    assert "most of it for TLS handshakes" in estimated(10_650, has_tls=True).sentence


def test_workers_add_descriptors_and_the_cores_that_there_are() -> None:
    four = estimated(10_650, workers=4)
    assert four.clients == 40_000
    assert four.reconnect_s == pytest.approx(40_000 / 1_000 / 2)


def test_table_has_the_share_of_memory_behind_each_number() -> None:
    rows = list(
        _table(estimated(10_650, connections_max=1_024, sessions_max=10_240)).columns[1].cells
    )
    assert rows[1:3] == [
        "4 of 1,024 MiB, 4.5 KiB per idle client",
        "20 of 1,024 MiB, 2.0 KiB per session",
    ]


@pytest.mark.slow
def test_capacity_is_of_this_machine_and_these_settings(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("127.0.0.1")
    users, config = tmp_path / "users", tmp_path / "flowguard.toml"
    assert passwd("add", "me", "--file", str(users), stdin="one\none\n").returncode == 0
    config.write_text(
        f'[network]\nlisteners = ["mqtts://127.0.0.1:0"]\ncert = "{pair.cert}"\n'
        f'key = "{pair.key}"\npassword_file = "{users}"\nallow_all_topics = true\n'
        "[node]\nconnections_max = 1_000\nworkers = 2\n"
    )
    code, said = flowguard("capacity", "--config", str(config), "--json")
    assert code == 0
    found = json.loads(said[said.index("{") :])
    assert found["descriptors_limit"] == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert (found["clients"], found["ends_first"]) == (1_000, "node.connections_max")
    assert (found["has_tls"], found["workers"]) == (True, 2)
    assert all(rate > 0 for rate in found["rates"].values())
    assert found["reconnect_s"] > 0
    config.write_text(f"[flow]\nmemory_max_bytes = {96 * MIB}\n")
    code, said = run_in(tmp_path, "capacity", "--config", str(config))  # A fork takes less.
    assert code == 2
    assert "it would reject all clients as overloaded. Raise it to" in said
