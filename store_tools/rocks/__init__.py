"""Tools for a closed store (`flowguard store`); the server imports none of them.

- `reader`        reads a store without changes; `tolerant` skips damaged rows
- `verification`  checks the consistency of a store
- `salvage`       copies the readable rest of a damaged store to a new one; `repair` makes a copy
                  that can be opened
- `merge`         merges two replicas of a store; `merge_queue` merges two replicas of a queue
- `durable_log`   opens the durable log for reports, and for commands that roll or drop generations
- `compaction`    frees the space of deleted rows

`copying` copies a closed store; a broker copies its own (`flowguard.stores.rocks.copying`).
"""
