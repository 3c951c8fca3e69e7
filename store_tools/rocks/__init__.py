"""Tools for a store that no broker has open (`flowguard store`); the server imports none of them.

- `reader`        a store as its files have it, for looking at; `tolerant` where some are damaged
- `verification`  is everything as it should be?
- `salvage`       what can be read of a damaged store, as a store of its own; `repair`: of one that
                  cannot even be opened
- `merge`         two replicas become one; `merge_queue`: two copies of a queue
- `durable_log`   the log of messages that are stored once: looked at, rolled, dropped
- `compaction`    the space of what was deleted, given back

`copying` copies a closed store; a broker copies its own (`flowguard.stores.rocks.copying`).
"""
