"""A move to another number of workers that is killed at any moment, and repeated."""

import shutil
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flowguard.codec.packets import Pubrec
from flowguard.types import SESSION_NEVER_EXPIRES
from tests.interop.broker import PATIENCE_S, start
from tests.store_tools.workers.test_move import (
    KilledMachine,
    fill,
    moved,
    on_disk,
    payloads,
    seen,
)
from tests.support.machine import answers

pytestmark = pytest.mark.slow
KILLS = 3
SESSIONS = 600


def begin(data: Path, count: int, out: Path) -> Any:
    return start("store", "workers", str(data), str(count), "--out", str(out))


def kill(process: Any) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


def is_there(out: Path, process: Any, part: str) -> bool:
    """Wait until a part of the unfinished directory exists; False if the process has ended."""
    while not any(out.parent.glob(f"{out.name}.unfinished/{out.name}/{part}")):
        if process.poll() is not None:
            return False
        time.sleep(0.001)
    return True


def test_move_that_is_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    data, out, random = tmp_path / "data", tmp_path / "out", Random(1)
    store = on_disk(data)
    for number in range(SESSIONS):
        fill(store, f"client-{number}")
    store.close()
    expected = seen(data, 1)
    process = begin(data, 2, tmp_path / "first")
    assert is_there(tmp_path / "first", process, "*")
    began_s = time.monotonic()
    _, complaint = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaint
    took_s = time.monotonic() - began_s
    killed = 0
    for number in range(KILLS):
        process = begin(data, 2, out)
        assert is_there(out, process, "*")
        time.sleep(took_s * number / KILLS * random.uniform(0.8, 1.0))
        kill(process)
        killed += process.returncode == -signal.SIGKILL
        if out.exists():  # It was complete.
            assert seen(out, 2) == expected
            shutil.rmtree(out)
        assert seen(data, 1) == expected
    assert killed > KILLS // 2
    assert seen(moved(data, 2), 2) == expected


def test_move_that_is_killed_while_workers_deliver_what_they_owe(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    machine = KilledMachine(data)
    subscriber = machine["worker-1"].connect_durable(
        "s", session_expiry_interval=SESSION_NEVER_EXPIRES
    )
    subscriber.subscribe("t", qos=2)
    subscriber.close()
    publisher = machine["worker-0"].connect("p")
    machine.is_carrying = False
    messages = [b"%d" % number for number in range(400)]
    for message in messages:
        publisher.publish("t", message, qos=2)
    assert len(answers(publisher, Pubrec)) == len(messages)
    machine.kill_all()
    random = Random(1)
    for _ in range(KILLS):
        process = begin(data, 3, out)
        assert process.stdout is not None
        line = process.stdout.readline()  # Some are delivered, others are not.
        if not line.startswith("Messages on the way"):
            _, complaint = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, complaint
            break
        time.sleep(random.uniform(0, 0.3))
        kill(process)
        shutil.rmtree(out, ignore_errors=True)
    assert payloads(moved(data, 4), 4, "s") == messages
