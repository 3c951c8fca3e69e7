"""The data directory of several workers, as commands for one store see it."""

from pathlib import Path

import pytest

from flowguard.app.workers.data_folder import take
from tests.store_tools.test_store import run_here


@pytest.mark.parametrize("command", ["info", "verify", "export", "compact", "salvage"])
def test_directory_of_several_workers_is_rejected_with_the_name_of_one(
    tmp_path: Path, command: str
) -> None:
    take(tmp_path, 2)
    (tmp_path / "worker-0").mkdir()
    code, shown, complaint = run_here("store", command, str(tmp_path))
    assert (code, shown) == (2, "")
    assert f"name one of them, {tmp_path}/worker-0" in complaint
    assert complaint.count("\n") == 1
