"""The store on Redis beside the published schema, and beside RocksDB: what a message costs."""
