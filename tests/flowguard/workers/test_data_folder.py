"""The data directory of several workers, as commands for one store see it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from flowguard.app.workers.data_folder import lock, stored_count, take
from flowguard.node.peers.messages import DELIVER, NO_SHARES, encode_forwarded
from flowguard.records import NEVER_S, Append, Delivery, PutSession, SinkKind, key_of
from flowguard.types import SESSION_NEVER_EXPIRES, Publish
from tests.flowguard.stores.test_contract import delivery
from tests.store_tools.test_store import check_named, damage, message_of, open_store, run_here

OWED = Publish("to/the/other", b"owed", 2)


def test_directory_of_several_workers_is_rejected_with_the_name_of_one(tmp_path: Path) -> None:
    take(tmp_path, 2)
    (tmp_path / "worker-0").mkdir()
    code, shown, complaint = run_here("store", "log", "info", str(tmp_path))
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
            owed = Publish("", encode_forwarded(OWED, DELIVER, 2e9, name, NO_SHARES), 2)
            store.commit([row, Append(key, 1, Delivery(owed, 2, False, (), NEVER_S))])
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


def test_export_has_the_stores_of_all_workers_and_what_they_owe_to_each_other(
    machine: Path,
) -> None:
    code, shown, _ = run_here("store", "export", str(machine))
    assert code == 0
    records = [json.loads(line) for line in shown.splitlines()]
    assert [record["type"] for record in records] == [
        *("store", "peer", "entry", "session", "entry"),
        *("store", "session", "entry"),
        "end",
    ]
    assert records[-1]["records"] == len(records) - 1
    assert [record["client_id"] for record in records if record["type"] == "session"] == [
        "client of worker-0",
        "client of worker-1",
    ]
    peer, owed = records[1:3]
    assert (peer["peer"], peer["next_pos"]) == ("worker-1", 2)
    assert (owed["peer"], owed["status"], owed["expires_at_s"]) == ("worker-1", "owed", 2e9)
    assert message_of(owed["message"]) == OWED
    check_named(shown)


def test_salvage_saves_the_stores_of_all_workers(machine: Path) -> None:
    saved = machine.with_name(f"{machine.name}-saved")
    code, shown, _ = run_here("store", "salvage", str(machine), "--out", str(saved))
    assert code == 0
    assert "2 sessions, 0 shared subscriptions with a queue, 3 queued messages" in shown
    assert stored_count(saved) == 2
    assert exported(saved) == exported(machine)


def test_salvage_names_the_worker_whose_store_is_damaged(machine: Path) -> None:
    damage(machine / "worker-1")
    saved = machine.with_name(f"{machine.name}-saved")
    code, shown, complaint = run_here("store", "salvage", str(machine), "--out", str(saved))
    assert code == 1
    assert "worker-1: session 'client of worker-1'" in shown.replace("\n", " ")
    assert "worker-0" not in shown
    assert f"flowguard serve --workers 2 --data {saved}" in complaint
    assert "client of worker-0" in str(exported(saved))


def test_salvage_leaves_no_directory_if_a_store_cannot_be_opened(machine: Path) -> None:
    shutil.rmtree(machine / "worker-1")
    saved = machine.with_name(f"{machine.name}-saved")
    code, _, complaint = run_here("store", "salvage", str(machine), "--out", str(saved))
    assert code == 1
    assert "worker-1 is no store" in complaint.replace("\n", "")
    assert not saved.exists()


def exported(machine: Path) -> list[str]:
    """Return the lines of an export that do not describe the store itself."""
    _, shown, _ = run_here("store", "export", str(machine))
    return [line for line in shown.splitlines() if '"type":"store"' not in line]
