"""Stores by their kind (`store.kind`), opened with the clocks and chance of this process.

A store joins by a line in OPENERS, and by its name in `flowguard.config.StoreSettings`.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from flowguard.config import Settings
from flowguard.stores import MemoryStore, Store

TOKEN_BYTES: Final = 12
"""Of chance in the name that an owner of sessions has in Redis, and nobody else ever."""


def _open_memory(settings: Settings, data: Path) -> Store:
    return MemoryStore()


# Each imports its engine itself, because it is loaded only where it is used.


def _open_rocks(settings: Settings, data: Path) -> Store:
    from flowguard.stores.rocks import RocksStore

    data.mkdir(parents=True, exist_ok=True)
    return RocksStore(
        data, settings.store, wall_s=time.time, random_node=partial(secrets.randbits, 32)
    )


def _open_redis(settings: Settings, data: Path) -> Store:
    from flowguard.stores.redis import RedisStore

    return RedisStore(
        settings,
        token=secrets.token_urlsafe(TOKEN_BYTES),
        name=f"{socket.gethostname()}, process {os.getpid()}",
        clock=time.monotonic,
        sleep=time.sleep,
    )


OPENERS: Final[Mapping[str, Callable[[Settings, Path], Store]]] = {
    "memory": _open_memory,
    "rocks": _open_rocks,
    "redis": _open_redis,
}


def open_store(settings: Settings, data: Path) -> Store:
    """The store that the settings name; one with files has them in `data`.

    Raises `ConfigError`, `StoreError`, `OSError`, and `ModuleNotFoundError` where its driver, an
    extra of the same name, is not installed.
    """
    return OPENERS[settings.store.kind](settings, data)
