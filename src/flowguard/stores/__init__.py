"""The durable state of a node: one contract, several engines. Synchronous, batch first, no trio.

A store is told in batches (`Store.commit`) and asked at start (`Store.sessions`,
`Store.retained`, `Store.fetch`). Waiting for commits, and acknowledging after them, is the
journal's business (`flowguard.node.journal`). Drivers are imported only by their own file of
this room.
"""

from flowguard.stores.applications import ApplicationStore
from flowguard.stores.base import NOT_FENCED, Fenced, LogStore, Store, StoreLoad
from flowguard.stores.group_feed import GroupFeed
from flowguard.stores.memory import MemoryStore

__all__ = [
    "ApplicationStore",
    "Fenced",
    "GroupFeed",
    "LogStore",
    "MemoryStore",
    "NOT_FENCED",
    "Store",
    "StoreLoad",
]
