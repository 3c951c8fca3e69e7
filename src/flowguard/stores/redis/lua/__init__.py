"""The library of functions that run in Redis.

- `functions`        commits, leases and reads, each atomic
- `queue_functions`  the layouts of queues, one table of Lua each
"""
