"""Salvage of a damaged store, or of those of several workers, while no broker runs on them."""

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flowguard.app.workers.data_folder import stored_count, take
from flowguard.stores.rocks.copying import published
from store_tools.command.parts import existing, held, stores_in
from store_tools.rocks import salvage as saving
from store_tools.rocks.salvage import Salvage

Progress = Callable[[int, int], None]


def save(data: Path, out: Path, progress: Progress) -> Salvage:
    """Copy what can be read of a data directory to the new directory `out`. Raises `StoreError`."""
    if not data.is_dir() or stored_count(data) is None:
        return _save(existing(data, "salvage"), out, progress)
    found = Salvage()
    with held(data, "stop that one"), published(out, data) as unfinished:
        unfinished.mkdir()
        stores = stores_in(data, "salvage")
        for store in stores:
            found.add(_save(store, unfinished / store.name, progress), store.name)
        take(unfinished, len(stores))
    return found


def _save(store: Path, out: Path, progress: Progress) -> Salvage:
    node = partial(secrets.randbits, 32)
    return saving.salvage(store, out, wall_s=time.time, random_node=node, progress=progress)
