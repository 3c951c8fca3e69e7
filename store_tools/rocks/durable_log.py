"""Access to the durable log of a closed store, for reports and changes."""

from collections.abc import Callable
from pathlib import Path

from flowguard.stores.log.generations import Retention
from flowguard.stores.log.message_log import MessageLog
from flowguard.stores.log.replays import LogPlace
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.layouts.keys import HLC_KEY
from flowguard.stores.rocks.log_home import RocksLogHome
from flowguard.stores.rocks.sessions import Sessions
from store_tools.rocks.reader import StoreReader, held

EVERYTHING = Retention(float("inf"), 2**63)


def log_in(engine: RocksEngine, *, tidies: bool) -> MessageLog:
    """Return the log in an open directory. `tidies`: delete the rest of an unfinished change."""
    high = int.from_bytes(engine.meta.get(HLC_KEY) or b"", "big")
    home = RocksLogHome(engine, tidies=tidies)
    return MessageLog(home, high=high, retention=EVERYTHING)


def places_in(reader: StoreReader) -> dict[str, LogPlace]:
    """Return the places in the log of all sessions that read it, by client id."""
    sessions = Sessions(reader.engine, reader.new_queue)
    sessions.restore(clean=reader.is_clean)
    return {
        record.client_id: LogPlace.decode(record.log_place)
        for record in sessions.records()
        if record.log_place
    }


def change(folder: Path, now_s: float, act: Callable[[MessageLog], object]) -> None:
    """Open the log of a store, call `act` with it, and sync. Raises `StoreError`."""
    with held(folder, now_s) as engine:
        act(log_in(engine, tidies=True))
        engine.sync()
