"""The durable state of a node: one contract, several engines. Synchronous, batch first, no trio.

A store gets batches (`Store.commit`), and is read at the start (`Store.sessions`, `Store.retained`,
`Store.fetch`). The journal (`flowguard.node.journal`) waits for commits and then acknowledges. Only
one module of each engine imports its driver.
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
