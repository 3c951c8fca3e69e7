"""The directory of a sweep while a run that was given up still writes there."""

import fcntl
import threading
import time
from pathlib import Path

from spark_sweep.folder import SweepFolder
from spark_sweep.task import AT_WORK

WRITES_S = 0.5


def test_what_is_unfinished_goes_when_the_last_run_that_was_given_up_has_ended(
    tmp_path: Path,
) -> None:
    folder = SweepFolder(tmp_path)
    begun = threading.Event()

    def write() -> None:
        with (folder.unfinished / AT_WORK).open() as at_work:
            fcntl.flock(at_work, fcntl.LOCK_SH)
            begun.set()
            ends_s = time.monotonic() + WRITES_S
            while time.monotonic() < ends_s:
                (folder.unfinished / "run").mkdir(parents=True, exist_ok=True)

    with folder.opened():
        writer = threading.Thread(target=write)
        writer.start()
        assert begun.wait(60.0)
    writer.join()
    assert not folder.unfinished.exists()
