"""The durable store on RocksDB (docs/explain/durability.md).

A batch of operations becomes one batch of RocksDB and one fsync. `building` is the way of a
batch, `window` the layout of a queue on disk, `keys` and `codec` its bytes, `sweep` the
deferrable work. Only `engine` knows the driver.
"""

from flowguard.stores.rocks.store import RocksStore

__all__ = ["RocksStore"]
