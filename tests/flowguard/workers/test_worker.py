"""Tasks of a worker for its supervisor."""

import json
from functools import partial
from pathlib import Path
from socket import SHUT_WR, socketpair
from typing import Any, cast

import trio

from flowguard.app.workers.process import Control
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import listen, serve
from flowguard.cli.worker import obey
from flowguard.cluster import Members
from flowguard.config import Settings
from flowguard.stores import MemoryStore


async def test_worker_that_has_drained_ignores_the_end_of_another_one(tmp_path: Path) -> None:
    members = Members("worker-0", 1, ["worker-0", "worker-1"])
    async with trio.open_nursery() as nursery:
        run = partial(
            serve, bounds_of(Settings()), MemoryStore(), listen("127.0.0.1", 0), members=members
        )
        running = await nursery.start(run)
        running.stop.set()
    ours, theirs = socketpair()
    with ours, theirs:
        ours.sendall(json.dumps({"died": ["worker-1", 1]}).encode() + b"\n")
        ours.shutdown(SHUT_WR)
        await obey(cast(Any, None), Control(theirs), running)
