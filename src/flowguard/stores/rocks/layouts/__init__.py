"""The format of the database: keys, records, and the layouts of a queue.

- `queue`          the interface of a layout
- `window`         layout `window`: entries are never rewritten; `window_record` has the state
- `status`         layout `status`: the published schema, for comparison
- `payloads`       messages that several queues share
- `keys`           keys, in the order that scans need
- `codec`          records of messages and entries: versioned, big endian
- `session_codec`  records of sessions, subscriptions, wills and retained messages
"""
