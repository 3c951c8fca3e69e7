"""Several workers of which one after the other is killed, and now and then their supervisor.

`python -m tests.torture.workers --kills 50 --seed 1`: players as in `tests.torture.run`. A killed
worker ends the connections of its own clients, and those that it was about to hand over. Between
the kills a worker has other faults (`tests.torture.worker_faults`), which end no connection of a
client that is in.
"""

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Annotated, Any

import typer

from flowguard.cluster import Members
from tests.interop.broker import start
from tests.support.patience import HANG_S
from tests.support.reaper import reap_at_the_end
from tests.torture.cast import settings
from tests.torture.players import Player, Reader, Visitor
from tests.torture.run import Torture
from tests.torture.verdict import Moment
from tests.torture.wire import HOST
from tests.torture.worker_faults import FAULTS

ENDED = "worker ended; it starts again"
KILLED = "why=SIGKILL"
READY = re.compile(r"worker ready +name=worker-(\d+) pid=(\d+)")
SUPERVISOR = 0.25
"""Share of the kills that hit the supervisor; the pauses before starts are short again then."""
TOGETHER = 0.7
"""Share of the faults before which all workers serve."""
ORDERLY = 0.05
LOAD_S = (0.05, 1.5)
FAULTY = 0.6
"""Share of the faults that end no process."""
FAULT_S = (0.05, 3.0)
FAULTY_KILLS = 0.3
"""Share of these faults during which a worker or the supervisor is killed."""
LEAVING_S = 5.0
"""Time in which clients of a killed worker see its end, in seconds."""


class Supervised:
    """A supervisor as a process, with its workers; times are `time.monotonic`'s."""

    def __init__(self, folder: Path, port: int, workers: int, chosen: dict[str, Any]) -> None:
        self.started_s = time.monotonic()
        self._log = folder / "broker.log"
        self._past_bytes = self._log.stat().st_size if self._log.exists() else 0
        variables = {
            f"FLOWGUARD_{section.upper()}__{name.upper()}": str(value)
            for section, values in chosen.items()
            for name, value in values.items()
        }
        with self._log.open("a") as log:
            self._process = start(
                *("serve", "--workers", str(workers), "--listen", f"{HOST}:{port}"),
                *("--data", str(folder / "store"), "--http", "none"),
                environment=variables,
                stderr=log,
            )
        self._serving_s: float | None = None

    @property
    def serving_s(self) -> float | None:
        stdout = self._process.stdout
        assert stdout is not None
        is_open = self._serving_s is None and not stdout.closed
        if is_open and select.select([stdout], [], [], 0)[0] and stdout.readline():
            self._serving_s = time.monotonic()
        return self._serving_s

    def pids(self) -> dict[int, int]:
        """Return the process id of the last start of each worker."""
        return {int(index): int(pid) for index, pid in READY.findall(self._text())}

    def ended_by_themselves(self) -> list[str]:
        """Return the log lines of workers that have ended without a kill."""
        return [each for each in self._text().splitlines() if ENDED in each and KILLED not in each]

    def _text(self) -> str:
        """Return what has been logged since the start."""
        return self._log.read_bytes()[self._past_bytes :].decode()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> int:
        pids = self.pids().values()
        self._process.kill()
        for pid in pids:
            wait_for_end(pid)
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait(HANG_S)
        self._process.communicate()
        return code


def wait_for_end(pid: int) -> None:
    """Wait until all threads of a process have ended, and so its sockets are closed."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], HANG_S)[0], "the process does not end"
    finally:
        os.close(process)


class WorkersTorture(Torture):
    """One run with several workers."""

    ends_in_turn = True

    def __init__(self, folder: Path, *, kills: int, seed: int, workers: int = 2) -> None:
        super().__init__(folder, kills=kills, seed=seed, store="rocks", refuses=True)
        # A new subscription may get what another worker still owed (docs/explain/cluster.md).
        self._players = [each for each in self._players if not isinstance(each, Visitor)]
        if workers > 2:
            self._use_limits_of_three()
        self._workers = workers
        names = [f"worker-{index}" for index in range(workers)]
        self._members = Members("worker-0", 1, names)
        self._killed: set[int] = set()
        """Process ids of workers that were killed."""
        self._killed_s: dict[int, float] = {}
        """When each worker was killed last."""

    def _use_limits_of_three(self) -> None:
        """Allow what docs/explain/cluster.md says of three and more nodes."""
        for player in self._players:
            if isinstance(player, Reader):
                player.repeats = True
        self._ledger.ignore_order_of_groups()

    def _start(self) -> Any:
        if self._broker is not None:
            return self._broker
        for player in self._players:
            player.night()
        self._is_ending = False
        chosen = settings(self._random)
        chosen["session"] |= {"queue_bytes_max": 2**28}
        chosen["store"] |= {"write_buffer_bytes": 2**22, "wal_bytes_max": 2**22}
        self._broker = broker = Supervised(self._folder, self._port, self._workers, chosen)  # type: ignore[assignment]
        return broker

    def _live(self) -> None:
        random = self._random
        self._start()
        if random.random() < TOGETHER:
            self._turns(self._all_serve, "not all workers start again")
        self._load(random.uniform(*LOAD_S))
        if random.random() < FAULTY:
            self._disturb(random)
        elif random.random() < ORDERLY:
            self._end()
        else:
            self._kill_one(random)

    def _disturb(self, random: Random) -> None:
        """Let a worker have a fault for a while."""
        name = random.choice(sorted(FAULTS))
        _, pid = self._choose(random)
        lasts_s = random.uniform(*FAULT_S)
        with FAULTS[name](pid):
            self._turns_until(time.monotonic() + lasts_s / 2)
            if random.random() < FAULTY_KILLS:
                self._kill_one(random)
            self._turns_until(time.monotonic() + lasts_s / 2)
        self.verdict.faults[name] += 1
        self._ledger.note(f"after {name} of process {pid}")

    def _kill_one(self, random: Random) -> None:
        """Kill a worker that serves, or the supervisor."""
        if random.random() < SUPERVISOR:
            self._kill(Moment.LOAD)
            return
        index, pid = self._choose(random)
        os.kill(pid, SIGKILL)
        wait_for_end(pid)
        self._killed.add(pid)
        self._killed_s[index] = time.monotonic()
        for player in self._players:
            player.night()
        self.verdict.kills[Moment.WORKER] += 1
        self._ledger.note(f"after {self.verdict.kills.total()} kills")
        self._ledger.report(self.verdict)
        self._on_kill(self.verdict)

    def _choose(self, random: Random) -> tuple[int, int]:
        """Return a worker that serves, and its process; others may be about to start."""
        supervised: Any = self._broker

        def is_serving() -> bool:
            # A worker that ends during the first start ends all, as documented.
            return supervised.serving_s is not None and bool(self._serving(supervised))

        self._turns(is_serving, "no worker starts again")
        return random.choice(sorted(self._serving(supervised).items()))

    def _all_serve(self) -> bool:
        supervised: Any = self._broker
        is_started = supervised.serving_s is not None
        return is_started and len(self._serving(supervised)) == self._workers

    def _serving(self, supervised: Any) -> dict[int, int]:
        return {index: pid for index, pid in supervised.pids().items() if pid not in self._killed}

    def _reap(self, code: int) -> bool:
        supervised: Any = self._broker
        for line in supervised.ended_by_themselves():
            self._ledger.find(f"a worker has ended by itself: {line}")
        return super()._reap(code)

    def _on_end_of(self, player: Player) -> None:
        owner = self._members.owner_of(player.peer.client_id).removeprefix("worker-")
        since_s = time.monotonic() - self._killed_s.get(int(owner), -LEAVING_S)
        if player.peer.online and since_s > LEAVING_S:
            super()._on_end_of(player)
        else:
            self._part(player, killed=True)


def main(
    kills: Annotated[int, typer.Option(min=1, help="Number of kills.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the players and moments.")] = 1,
    workers: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 2,
) -> None:
    """Exit code 1: something was found, and the directory is kept."""
    kept_in = tempfile.gettempdir()
    reap_at_the_end()
    folder = Path(tempfile.mkdtemp(prefix="torture-workers-", dir=kept_in))
    verdict = WorkersTorture(folder, kills=kills, seed=seed, workers=workers).run()
    print(verdict)
    for finding in verdict.findings[:20]:
        print(finding)
    if verdict.findings:
        print(f"directory: {folder}", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
