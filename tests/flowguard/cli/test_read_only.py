"""A data directory that may not be written ends in one sentence, and stays as it is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.broker import PATIENCE_S, running_broker

AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""root without the right to ignore permissions."""


def serve(data: Path) -> "subprocess.CompletedProcess[str]":
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv (package util-linux)")
        prefix = AS_ANYBODY
    command = [*prefix, sys.executable, "-m", "flowguard", "serve"]
    return subprocess.run(
        [*command, "--listen", "127.0.0.1:0", "--http", "none", "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_refused(data: Path, unwritable: Path) -> None:
    before = contents(data)
    result = serve(data)
    assert (result.returncode, result.stdout) == (73, "")
    assert result.stderr == (
        f"flowguard cannot use {data} (--data)\n{unwritable} may not be written by this process; "
        "make it writable, or use another folder\n"
    )
    assert contents(data) == before


@pytest.mark.slow
def test_an_empty_directory_that_is_read_only_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o555)
    assert_refused(data, data)


@pytest.mark.slow
def test_a_store_that_has_become_read_only_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with running_broker(tmp_path):
        pass
    data = tmp_path / "data"
    for path in data.iterdir():
        path.chmod(0o444)
    assert_refused(data, data / "LOCK")
    data.chmod(0o555)
    assert_refused(data, data)
    data.chmod(0o755)
    for path in data.iterdir():
        path.chmod(0o644)
    with running_broker(tmp_path):
        pass
