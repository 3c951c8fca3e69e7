"""RocksDB as the store uses it: bytes in, bytes out.

- `engine`         families, batches, scans, options; it alone knows the driver
- `driver_errors`  errors of RocksDB as errors of flowguard
- `log_files`      checks of the log of writes before RocksDB reads it
- `synced`         the part of that log that is known to be on the disk
"""
