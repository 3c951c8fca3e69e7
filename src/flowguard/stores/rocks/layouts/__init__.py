"""Bytes of the database: keys, records, and the layouts of a queue.

- `queue`          the interface of a layout
- `window`         layout `window`: entries are never rewritten; `window_record` has the progress
- `status`         layout `status`: the published schema, for comparison
- `payloads`       messages that several queues share
- `keys`           keys, in an order that scans need
- `codec`          records by hand: versioned, big endian
- `session_codec`  records of sessions, subscriptions, wills and retained messages
"""
