"""`flowguard store copy`: copies a store to another one, on disk or on Redis."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flowguard.app.stores import open_store
from flowguard.cli.settings import settings_of
from flowguard.errors import StoreError
from flowguard.stores import Store
from store_tools.transfer import Transferred, transfer


def copy(
    source: str, target: str, prefix: str, layout: str, progress: Callable[[int, int], None]
) -> Transferred:
    """Copy a store. Raises `StoreError`, `ConfigError`."""
    if not is_url(source) and not Path(source).is_dir():
        raise StoreError(f"there is no directory {source}")
    if not is_url(target) and Path(target).exists():
        raise StoreError(f"{target} exists; name a new directory")
    with (
        closing(open_place(source, prefix, layout)) as opened,
        closing(open_place(target, prefix, layout)) as new,
    ):
        return transfer(opened, new, progress)


def is_url(place: str) -> bool:
    return "://" in place


def open_place(place: str, prefix: str, layout: str) -> Store:
    """Open the store. The durability of Redis is not checked before a broker starts on it."""
    values: dict[str, dict[str, str]] = {"store": {"durability": "os"}}
    if is_url(place):
        values = {
            "store": {"kind": "redis", "durability": "memory"},
            "redis": {"url": place, "prefix": prefix, "layout": layout},
        }
    return open_store(settings_of(values), Path(place))
