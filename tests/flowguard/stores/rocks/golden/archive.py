"""Where golden directories lie, how they are opened, and what is in one."""

from pathlib import Path

from flowguard.config import StoreSettings
from flowguard.stores.rocks import RocksStore
from store_tools.command.export import export_lines
from store_tools.rocks.reader import StoreReader

FOLDER = Path(__file__).parent
WALL_S = 1.7e9


def open_store(folder: Path, layout: str) -> RocksStore:
    settings = StoreSettings.model_validate({"layout": layout, "disk_reserve_bytes": 0})
    return RocksStore(folder, settings, wall_s=lambda: WALL_S, random_node=lambda: 7)


def exported(folder: Path) -> str:
    """All that a store has, as `flowguard store export` writes it."""
    with StoreReader(folder) as reader:
        return "".join(export_lines([reader], lambda done, of: None))
