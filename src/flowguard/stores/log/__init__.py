"""The durable log: a message stored once, read by any number of subscribers (docs/explain/log.md).

Sans-IO: rows are in sorted key-value spaces (`LogRows`) of an engine or in memory.

- `rows`         the interface of sorted rows, and an implementation in memory
- `layout`       the interface of layouts: rows of messages, and reads of those that may match
- `reference`    keys by time: read everything and compare; the oracle
- `keymapper`    topics and filters as 128 bits, and the smallest key that satisfies a filter
- `bitmask`      keys by epoch, topic and time (the default)
- `structure`    the learned structure of topics: the levels that vary
- `skipstream`   keys by structure and time, with an index of the varying levels
- `logged`       the record of a message
- `iterators`    streams, and positions in them
- `generations`  slices of time, and their retention
- `homes`        the interface of the storage of generations
- `replays`      the messages that a session has missed, by one position in all streams
- `shared_reads` one read for all sessions at the same place
- `message_log`  the whole log: append, streams, iterators, next, retention
"""
