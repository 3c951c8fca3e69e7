"""A broker with a store that is slow by the clock: `python -m simulations.calibration.slow CONFIG`.

It takes as long for a commit on a busy machine as on a quiet one, and is the bottleneck of both.
So the result of a check is about the model (gate, journal, windows, retries), hardly about other
processes here.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import structlog
import trio

from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen, serve
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.cli.settings import load
from flowguard.records import StoreOp
from flowguard.stores import Fenced, MemoryStore

COMMIT_S: Final = 0.005
OP_S: Final = 0.000_1


@final
class SlowStore(MemoryStore):
    """A store in memory, with the pace of a busy disk."""

    immediate = False

    def commit(self, ops: Sequence[StoreOp]) -> Fenced:
        fenced = super().commit(ops)
        time.sleep(COMMIT_S + OP_S * len(ops))
        return fenced


async def _main(config: Path) -> None:
    bounds = bounds_of(load(config, os.environ).settings)
    async with trio.open_nursery() as nursery:

        async def serving(task_status: trio.TaskStatus[Running]) -> None:
            listener = listen("127.0.0.1", 0)
            await serve(bounds, SlowStore(), listener, task_status=task_status)

        running: Running = await nursery.start(serving)
        host, port = running.address
        sys.stdout.write(f"listening on {host}:{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    use_all_descriptors()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(_main, Path(sys.argv[1]))
