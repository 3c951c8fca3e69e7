"""A shard that a node gives away, and takes back before its worker has ended."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.testing

from flowguard.app.workers import supervisor
from flowguard.app.workers.process import WorkerSpec
from flowguard.app.workers.supervisor import Supervisor


class NoControl:
    """A pair of sockets without messages."""

    async def messages(self) -> Any:
        await trio.sleep_forever()
        yield {}

    async def tell(self, **message: object) -> None:
        pass


class Process:
    """A process that ends as soon as it is told to, with an exit code."""

    all: ClassVar[list["Process"]] = []
    exit_code = 0

    def __init__(self, spec: WorkerSpec) -> None:
        self.control = NoControl()
        self.pid = 1
        self.is_stopping = False
        self.is_ended = trio.Event()
        self.all.append(self)

    def stop(self) -> None:
        self.is_stopping = True
        self.is_ended.set()

    async def ended(self) -> int:
        await self.is_ended.wait()
        return self.exit_code

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("exit_code", "restarts_count"), [(0, 0), (1, 1)])
async def test_worker_that_was_to_end_has_not_failed(
    exit_code: int,
    restarts_count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    monkeypatch.setattr(Process, "all", [])
    monkeypatch.setattr(Process, "exit_code", exit_code)
    monkeypatch.setattr(supervisor, "WorkerProcess", Process)
    spec = WorkerSpec(0, 1, 0, str(tmp_path), {}, 2**30, None, [], 1, 1)
    one = Supervisor(spec, [], None, None, ExitStack())
    (worker,) = one.workers
    async with trio.open_nursery() as nursery:
        one._nursery = nursery
        one._started.set()
        nursery.start_soon(one._keep, worker)
        await trio.sleep(60)
        worker.want(is_wanted=False)
        worker.want(is_wanted=True)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert len(Process.all) == 2
    assert worker.restarts_count == restarts_count
