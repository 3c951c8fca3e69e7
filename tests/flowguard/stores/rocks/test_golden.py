"""Data of an earlier version is read by this one, and extended."""

import json
import tarfile
from pathlib import Path

import pytest

from flowguard.records import NEVER_S, Append, Delivery
from flowguard.stores.rocks.store import LAYOUTS
from flowguard.types import Publish
from tests.flowguard.stores.rocks.golden.archive import FOLDER, exported, open_store

ARCHIVES = sorted(FOLDER.glob("*.tar.xz"))


def unpacked(archive: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
    return folder


def expected(archive: Path) -> list[str]:
    return archive.with_suffix("").with_suffix(".jsonl").read_text().splitlines()


def test_there_is_one_for_every_layout() -> None:
    assert {archive.name.split("-")[2].split(".")[0] for archive in ARCHIVES} == set(LAYOUTS)


@pytest.mark.parametrize("archive", ARCHIVES, ids=[archive.name for archive in ARCHIVES])
def test_all_of_it_is_read(archive: Path, tmp_path: Path) -> None:
    assert exported(unpacked(archive, tmp_path)).splitlines() == expected(archive)


@pytest.mark.parametrize("archive", ARCHIVES, ids=[archive.name for archive in ARCHIVES])
def test_it_is_written_on_and_nothing_that_was_there_is_lost(archive: Path, tmp_path: Path) -> None:
    folder = unpacked(archive, tmp_path)
    before = [json.loads(line) for line in expected(archive)]
    store = open_store(folder, before[0]["layout"])
    try:
        record = next(session for session in store.sessions() if session.client_id == "away")
        more = Delivery(Publish("t", b"more", 1), 1, False, (), NEVER_S)
        store.commit([Append("away", record.next_pos, more)])
    finally:
        store.close()
    after = [json.loads(line) for line in exported(folder).splitlines()]
    entries = [line for line in before if line["type"] == "entry"]
    added = [line for line in after if line["type"] == "entry" and line not in entries]
    assert [line for line in after if line["type"] == "entry" and line in entries] == entries
    assert [(line["client_id"], line["pos"]) for line in added] == [("away", record.next_pos)]
