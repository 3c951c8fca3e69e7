"""The durable log: a message stored once, read by any number of subscribers (docs/explain/log.md).

Sans-IO: rows lie in sorted key-value spaces (`LogRows`), which an engine or a list gives.

- `rows`         what a layout needs of its engine, and the same in memory
- `layout`       what a layout is: rows of messages, and those that may answer a question
- `reference`    keys by time: read everything and compare; the oracle
- `keymapper`    topics and filters as 128 bits, and the smallest key that satisfies a filter
- `bitmask`      keys by epoch, topic and time (the default)
- `structure`    what is learned of topics: which levels vary
- `skipstream`   keys by structure and time, with an index of what varies
- `logged`       a message as the log keeps it
- `iterators`    streams, and positions in them
- `generations`  slices of time: which there are, when one ends, when one goes
- `homes`        where generations have their rows and records
- `replays`      what a session has missed, by one position in all streams
- `shared_reads` one answer for all who stand at the same place
- `message_log`  all of it together: append, streams, iterators, next, retention
"""
