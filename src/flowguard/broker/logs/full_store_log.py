"""Log when a store becomes full, and when it is writable again."""

from typing import final

import structlog

from flowguard.broker.logs.overload_log import INTERVAL_S
from flowguard.node.node import Node

log = structlog.get_logger()

ROOM = {
    "redis": "delete something in Redis, or raise its maxmemory",
    "rocks": "free space on the disk, or lower store.disk_reserve_bytes",
}
"""Ways to free space, by kind of the store."""


@final
class FullStoreLog:
    """Logs each change once; call `tick` every 100 ms, after the store's load was read.

    A disk that fills repeatedly at its reserve is logged once per interval.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_told = False
        self._due_s = 0.0

    def tick(self, now_s: float) -> None:
        node = self._node
        is_full = node.state.read_only
        if is_full == self._is_told or (is_full and now_s < self._due_s):
            return
        self._is_told = is_full
        free_bytes = node.store_load.free_bytes
        if not is_full:
            free = {} if free_bytes is None else {"free_bytes": free_bytes}
            log.info("store writable again", **free)
            return
        self._due_s = now_s + INTERVAL_S
        log.warning(
            "store full; durable messages and new durable sessions are rejected",
            free_bytes=free_bytes,
            full_below_bytes=node.store_load.reserve_bytes,
            hint=ROOM.get(node.settings.store.kind, ROOM["rocks"]),
        )
