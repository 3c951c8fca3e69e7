"""Threads that leave the processor to the loop."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest
from structlog.testing import capture_logs

from flowguard import priority
from flowguard.priority import NICE_MAX, give_way, lowered, named_give_way, threads_named

PIDS_MAX = 2**22
"""Linux gives no process or thread a higher id."""


@contextmanager
def thread_called(name: str) -> Iterator[int]:
    """A thread that waits, by its id in the system."""
    started = SimpleQueue[int]()
    end = threading.Event()

    def wait() -> None:
        own = threading.get_native_id()
        (priority.THREADS / str(own) / "comm").write_text(name)
        started.put(own)
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield started.get()
    finally:
        end.set()
        thread.join()


def nice_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def test_threads_give_way_by_the_beginning_of_their_names_and_the_others_do_not() -> None:
    mine = nice_of(0)
    with thread_called("worker:1") as one, thread_called("other") as other:
        assert threads_named("worker:") == [one]
        with capture_logs() as lines:
            named_give_way("worker:")
        assert (nice_of(one), nice_of(other), nice_of(0)) == (lowered(), mine, mine)
        assert not lines


def test_a_lowered_thread_is_below_a_process_that_is_nice_itself() -> None:
    ask = "import os; from flowguard import priority; print(os.nice(5), priority.lowered())"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    own, thread = map(int, said.stdout.split())
    assert thread > own or own == NICE_MAX


def test_give_way_never_raises_a_priority() -> None:
    with thread_called("worker:1") as one:
        os.setpriority(os.PRIO_PROCESS, one, NICE_MAX)
        give_way(one)
        assert nice_of(one) == NICE_MAX


def test_the_log_says_why_threads_keep_their_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as lines:
        named_give_way("nobody:")
        monkeypatch.setattr(priority, "THREADS", tmp_path / "task")
        named_give_way("worker:")
    assert [line["event"] for line in lines] == ["thread priority unchanged"] * 2
    assert lines[0]["why"] == "no thread has such a name"
    assert "No such file or directory" in lines[1]["why"]


def test_a_thread_that_ends_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "THREADS", tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "comm").write_text("worker:2\n")
    assert threads_named("worker:") == [2]


def test_a_thread_that_ends_before_it_gives_way_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_called("worker:1") as one, capture_logs() as lines:
        for thread in (PIDS_MAX + 1, one, PIDS_MAX + 2):
            (tmp_path / str(thread)).mkdir()
            (tmp_path / str(thread) / "comm").write_text("worker:")
        monkeypatch.setattr(priority, "THREADS", tmp_path)
        named_give_way("worker:")
        assert nice_of(one) == lowered()
    assert not lines
