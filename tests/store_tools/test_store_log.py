"""`flowguard store log ...` on a real directory."""

from pathlib import Path

from flowguard.records import NEVER_S, AppendToLog, PutLogPlace, PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.types import Publish
from tests.store_tools.test_store import SETTINGS, run_here

NOW_S = 1_700_000_000.0


def opened(folder: Path) -> RocksStore:
    return RocksStore(folder, SETTINGS, wall_s=lambda: NOW_S, random_node=lambda: 7)


def logged(folder: Path) -> Path:
    """A log of five messages, of which a session has missed three."""
    store = opened(folder)
    message = AppendToLog("p", Publish("t", b"x", 1), NEVER_S)
    store.commit([PutSession("c", 9, 5.0), message, message, PutLogPlace("c", None)])
    store.commit([message] * 3)
    store.close()
    return folder


def test_info_says_what_there_is_and_who_is_behind(tmp_path: Path) -> None:
    code, out, _ = run_here("store", "log", "info", str(logged(tmp_path / "s")))
    assert code == 0
    assert "5 messages in 1 generation" in out
    assert "oldest message 2023-11-14 22:13:20" in out
    assert "1 session with messages to read" in out
    assert " c " in out


def test_who_has_read_nothing_of_a_new_log_is_not_said_to_have_read_until_some_day(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path / "s")
    store.commit([PutSession("c", 9, 5.0), PutLogPlace("c", None)])
    store.commit([AppendToLog("p", Publish("t", b"x", 1), NEVER_S)])
    store.close()
    _, out, _ = run_here("store", "log", "info", str(tmp_path / "s"))
    (row,) = [line for line in out.splitlines() if line.strip().startswith("c ")]
    assert row.split() == ["c", "1", "it", "began"]


def test_a_store_without_a_log_says_so(tmp_path: Path) -> None:
    opened(tmp_path / "s").close()
    code, out, _ = run_here("store", "log", "info", str(tmp_path / "s"))
    assert (code, "The durable log is empty" in out) == (0, True)


def test_generations_are_added_and_dropped(tmp_path: Path) -> None:
    folder = str(logged(tmp_path / "s"))
    code, _, complaint = run_here("store", "log", "drop", "1", folder)
    assert (code, "not sealed" in complaint) == (1, True)
    assert run_here("store", "log", "add", folder)[0] == 0
    _, out, _ = run_here("store", "log", "generations", folder)
    assert [
        line.split()[:2] for line in out.splitlines() if line.split()[:1] in (["1"], ["2"])
    ] == [
        ["1", "sealed"],
        ["2", "current"],
    ]
    _, out, _ = run_here("store", "log", "streams", folder)
    assert sum(int(line.split()[2]) for line in out.splitlines()[3:] if line.strip()) == 5
    assert run_here("store", "log", "drop", "1", folder)[0] == 0
    _, out, _ = run_here("store", "log", "info", folder)
    assert "0 messages in 1 generation" in out
    assert "5 messages dropped" in out
    store = opened(tmp_path / "s")
    assert store.read_log("c", ["t"], 9, 999).lost_count == 5
    store.close()
