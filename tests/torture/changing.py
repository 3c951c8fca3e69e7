"""Workers that are killed, and whose number changes before some starts.

`python -m tests.torture.changing --kills 50 --seed 1`: as `tests.torture.workers`. Before some
starts, `flowguard store workers` moves the store to another number of workers. Some of these
commands are killed, and begin again.
"""

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from flowguard.app.workers.data_folder import SINGLE_STORE_FILE, stored_count
from flowguard.cluster import Members
from tests.interop.broker import start
from tests.support.patience import HANG_S
from tests.support.reaper import reap_at_the_end
from tests.torture.run import Found
from tests.torture.verdict import Moment
from tests.torture.workers import LOAD_S, WorkersTorture

CHANGED = 0.8
"""Share of the starts with another number of workers."""
WHOLE = 0.6
"""Share of the kills that hit all workers, also with several of them."""
KILLED = 0.3
"""Share of the moves that are killed."""
MOVE_S = 3.0
"""A kill comes within this time of a move, seconds."""


class ChangingTorture(WorkersTorture):
    """One run."""

    def __init__(self, folder: Path, *, kills: int, seed: int, most: int = 3) -> None:
        """`most` is the highest number of workers."""
        super().__init__(folder, kills=kills, seed=seed)
        self._most = most
        self.changes_count = 0
        if most > 2:
            self._use_limits_of_three()

    def _prepare(self) -> None:
        self._ledger.ignore_order_of_groups()
        super()._prepare()

    def _start(self) -> Any:
        if self._broker is None and self._random.random() < CHANGED:
            self._change()
        return super()._start()

    def _live(self) -> None:
        self._start()  # The number of workers may change first.
        if self._workers > 1 and self._random.random() > WHOLE:
            super()._live()
            return
        self._load(self._random.uniform(*LOAD_S))
        self._kill(Moment.LOAD)

    def _change(self) -> None:
        """Move the store to another number of workers."""
        data, out = self._folder / "store", self._folder / "next"
        if not (data / SINGLE_STORE_FILE).exists() and stored_count(data) is None:
            return  # It was killed before it had a store.
        numbers = [each for each in range(1, self._most + 1) if each != self._workers]
        count = self._random.choice(numbers)
        command = ("store", "workers", str(data), str(count), "--out", str(out))
        if self._random.random() < KILLED:
            process = start(*command)
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._random.uniform(0, MOVE_S))
            process.kill()
            process.communicate()
        if not out.exists():
            process = start(*command)
            _, complaint = process.communicate(timeout=HANG_S)
            if process.returncode:
                self._ledger.find(f"no move to {count} workers: {complaint}")
                raise Found
        shutil.rmtree(data)
        out.rename(data)
        self._workers = count
        self._members = Members("worker-0", 1, [f"worker-{index}" for index in range(count)])
        self.changes_count += 1


def main(
    kills: Annotated[int, typer.Option(min=1, help="Number of kills.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the players and moments.")] = 1,
    most: Annotated[int, typer.Option(min=2, help="Highest number of workers.")] = 3,
) -> None:
    """Exit code 1: something was found, and the directory is kept."""
    kept_in = tempfile.gettempdir()
    reap_at_the_end()
    folder = Path(tempfile.mkdtemp(prefix="torture-changing-", dir=kept_in))
    torture = ChangingTorture(folder, kills=kills, seed=seed, most=most)
    verdict = torture.run()
    print(verdict, f"changes: {torture.changes_count}", *verdict.findings[:20], sep="\n")
    if verdict.findings:
        print(f"directory: {folder}")
        raise typer.Exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
