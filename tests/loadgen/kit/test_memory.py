"""Resident memory of processes."""

import os
from pathlib import Path

import pytest

from loadgen.kit import memory
from loadgen.kit.memory import resident_kib


def test_a_process_counts_and_one_that_has_ended_counts_nothing() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    assert resident_kib([child]) == 0
    assert resident_kib([os.getpid(), child]) > 0


def test_a_process_counts_with_its_children_also_while_a_thread_of_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, kib in (1, 300), (7, 20):
        (tmp_path / str(pid) / "task").mkdir(parents=True)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tone\nVmRSS:\t{kib} kB\n")
    for thread in "1", "2", "3":
        (tmp_path / "1" / "task" / thread).mkdir()
    (tmp_path / "1" / "task" / "1" / "children").write_text("")
    (tmp_path / "1" / "task" / "3" / "children").write_text("7 ")
    monkeypatch.setattr(memory, "PROCESSES", tmp_path)
    assert resident_kib([1]) == 320
