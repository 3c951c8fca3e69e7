"""`flowguard storm` as a program, against `flowguard serve`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import flowguard
from tests.support.patience import HANG_S

FLOWGUARD = [sys.executable, "-m", "flowguard"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("data")) as place:
        yield place


@contextmanager
def serve(data: Path, *words: str) -> Iterator[str]:
    """A broker's address."""
    command = [*FLOWGUARD, "serve", "--listen", "127.0.0.1:0", "--data", str(data), *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").split()[0]
        process.terminate()
        assert process.wait(HANG_S) == 0


def storm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLOWGUARD, "storm", *words], capture_output=True, text=True, timeout=HANG_S, check=False
    )


def test_json_is_all_that_stdout_has(address: str) -> None:
    done = storm(address, "connect", "--clients", "50", "--hold", "0", "--json", "-")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["scenario"], result["version"], result["target"]) == ("connect", "5.0", address)
    assert result["connected"] == result["clients"] == 50
    assert "50" in done.stderr
    after_s = result["connected_after_s"]
    assert 0 < after_s["p50"] <= after_s["p99"] * 1.02 <= after_s["p100"] * 1.05
    for percent in (50, 99, 100):
        assert f"{percent} % in after " in done.stderr


@pytest.mark.parametrize("scenario", ["pairs", "fanout", "fanin"])
def test_messages_flow_and_the_result_lands_in_a_file(
    address: str, scenario: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    words = ["--clients", "5", "--pairs", "5", "--seconds", "0.2", "--version", "3.1.1"]
    done = storm(address, scenario, *words, "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "received" in done.stdout
    result = json.loads(path.read_text())
    assert result["received"] == result["expected"] > 0


def test_a_result_that_finds_no_room_is_a_line(address: str) -> None:
    done = storm(address, "connect", "--clients", "5", "--hold", "0", "--json", "/dev/full")
    assert done.returncode == 1
    assert "cannot write /dev/full: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_storm_that_could_not_subscribe_says_so_and_is_no_success(tmp_path: Path) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text('[roles.r]\nanonymous = true\npublish = ["#"]\n')
    with serve(tmp_path / "data", "--acl", str(rules)) as address:
        done = storm(address, "pairs", "--pairs", "3")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "No message was sent: subscriptions were refused, 3 x 0x87 not authorized." in said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["localhost", "connect"], "HOST:PORT"),
        (["127.0.0.1:1", "connect", "--clients", "100000000"], "open files"),
        (["127.0.0.1:1", "tornado"], "SCENARIO"),
        (["127.0.0.1:1", "connect", "--json", "/no/such/x.json"], "no directory /no/such"),
        (["127.0.0.1:1", "connect", "--json", "/"], "it is a directory"),
        (["--kit", "127.0.0.1:1", "--html", "/no/such/x.html"], "no directory /no/such"),
        (["127.0.0.1:1", "connect", "--html", "x.html"], "needs --kit or --compare"),
        (["127.0.0.1:1", "connect", "--pid", "1"], "--pid: only with --kit"),
        (["--compare", "a.json", "--json", "b.json"], "cannot be used with --compare"),
        (["unix:/run/mqtt.sock", "connect"], "not a Unix socket"),
        (["a..b:1", "connect"], "a..b is no name of a machine"),
        (["127.0.0.1:1", "connect"], "no broker listens on 127.0.0.1:1"),
        (["127.0.0.1:1", "pairs", "--qos", "3"], "qos"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(words: list[str], hint: str) -> None:
    code, _, said = flowguard("storm", *words)
    assert code == 2
    assert hint in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said
