"""The data directory of several workers, as commands for one store see it."""

import os
from pathlib import Path

import pytest

from flowguard.app.workers.data_folder import lock, stored_count, take
from flowguard.records import Append, PutSession, SinkKind, key_of
from flowguard.types import SESSION_NEVER_EXPIRES
from tests.flowguard.stores.test_contract import delivery
from tests.store_tools.test_store import damage, open_store, run_here


@pytest.mark.parametrize("command", ["export", "salvage"])
def test_directory_of_several_workers_is_rejected_with_the_name_of_one(
    tmp_path: Path, command: str
) -> None:
    take(tmp_path, 2)
    (tmp_path / "worker-0").mkdir()
    code, shown, complaint = run_here("store", command, str(tmp_path))
    assert (code, shown) == (2, "")
    assert f"name one of them, {tmp_path}/worker-0" in complaint
    assert complaint.count("\n") == 1


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The directory of two workers with a session each, and a message that one owes."""
    take(tmp_path, 2)
    for worker in ("worker-0", "worker-1"):
        store = open_store(tmp_path / worker)
        name = f"client of {worker}"
        store.commit([PutSession(name, 60, None), Append(name, 1, delivery())])
        if worker == "worker-0":
            key = key_of(SinkKind.PEER, "worker-1")
            row = PutSession(key, SESSION_NEVER_EXPIRES, None, False, "1 0 0")
            store.commit([row, Append(key, 1, delivery(qos=2))])
        store.close()
    return tmp_path


def test_info_shows_each_worker_and_the_sum(machine: Path) -> None:
    code, shown, _ = run_here("store", "info", str(machine))
    assert code == 0
    assert "client of worker-0" in shown
    assert "client of worker-1" in shown
    assert "owed to this worker" in shown
    assert (
        "All 2 workers: 2 sessions, 0 shared subscriptions with a queue, 3 queued messages" in shown
    )


def test_verify_reads_all_workers_and_names_those_that_are_damaged(machine: Path) -> None:
    code, shown, _ = run_here("store", "verify", str(machine))
    assert (code, shown.count("The store is consistent.")) == (0, 2)
    damage(machine / "worker-1")
    code, shown, complaint = run_here("store", "verify", str(machine))
    assert (code, shown.count("The store is consistent.")) == (1, 1)
    assert f"{machine / 'worker-1'} is damaged" in complaint.replace("\n", "")
    assert "worker-0" not in complaint


def test_compact_rewrites_the_tables_of_all_workers(machine: Path) -> None:
    code, shown, _ = run_here("store", "compact", str(machine))
    assert code == 0
    assert [line.partition(": ")[0] for line in shown.splitlines()] == [
        str(machine / "worker-0"),
        str(machine / "worker-1"),
    ]


def test_backup_copies_the_stores_of_all_workers(machine: Path) -> None:
    copy = machine.with_name(f"{machine.name}-copy")
    code, shown, _ = run_here("store", "backup", str(copy), "--data", str(machine))
    assert code == 0
    assert f"{copy} is a copy of {machine}" in shown.replace("\n", "")
    assert stored_count(copy) == 2
    _, shown, _ = run_here("store", "info", str(copy))
    assert "All 2 workers: 2 sessions" in shown


def test_backup_of_a_directory_that_is_in_use_names_the_way_out(machine: Path) -> None:
    copy, held = machine.with_name(f"{machine.name}-copy"), lock(machine)
    try:
        code, _, complaint = run_here("store", "backup", str(copy), "--data", str(machine))
    finally:
        os.close(held)
    assert code == 1
    assert "let it make the copy: --url HOST:PORT" in complaint.replace("\n", " ")
    assert not copy.exists()
