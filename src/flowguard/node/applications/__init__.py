"""Applications: clients that consume every message, however late, from a store of their own.

- `applications`     which clients are applications
- `names`            which operations concern applications
- `divided_journal`  a second journal for these operations; its store may fail alone
- `lane`             the way to that store, for a node with one store
- `separate_lane`    the same for a node with two stores
- `apart`            messages that wait for that store
- `staged`           a message that applications get before all others
- `owed`             wills and dead letters that wait for that store
- `log_readers`      sessions that read the durable log instead of a queue
- `log_fetch`        one page of the log
- `log_counts`       the number of messages that a session has not read yet
"""
