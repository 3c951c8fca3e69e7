"""Copies of a store, or of those of several workers, while no broker runs on them."""

from pathlib import Path

from flowguard.app.workers.data_folder import stored_count, take
from store_tools.command.parts import existing, held, stores_in
from store_tools.rocks.copying import back_up_files
from store_tools.rocks.reader import StoreReader


def back_up(data: Path, folder: Path) -> None:
    """Copy the store or stores of a data directory to the new directory `folder`.

    Raises `StoreError`, and LockedError if a broker has the only store open.
    """
    if data.is_dir() and stored_count(data) is not None:
        _back_up_workers(data, folder)
        return
    with StoreReader(existing(data, "backup")):
        back_up_files(data, folder)


def _back_up_workers(data: Path, folder: Path) -> None:
    """Copy one store after the other, and write the note of their number last."""
    with held(data, "let it make the copy: --url HOST:PORT"):
        folder.mkdir()
        stores = stores_in(data, "backup")
        for store in stores:
            with StoreReader(store):
                back_up_files(store, folder / store.name)
        take(folder, len(stores))
