"""RocksDB as the store uses it: bytes in, bytes out.

- `engine`         families, batches, scans, options; the only user of the driver
- `rows`           what of batches and reads needs no driver
- `driver_errors`  converts errors of RocksDB to those of flowguard
- `log_files`      checks the log of writes before RocksDB reads it
- `synced`         the part of that log that is known to be on disk
"""
