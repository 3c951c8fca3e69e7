"""The durable store on RocksDB (docs/explain/durability.md).

A batch of operations becomes one batch of RocksDB and one fsync. `building` builds the batch,
`layouts/` has the format of queues, keys and records, `sweep` the deferrable work. Only
`database/engine` uses the driver.
"""

from flowguard.stores.rocks.store import RocksStore

__all__ = ["RocksStore"]
