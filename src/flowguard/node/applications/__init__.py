"""Applications: clients that consume every message, however late, from a store of their own.

- `applications`     which clients are applications
- `names`            which operations concern applications
- `divided_journal`  a second journal for these operations; its store may fail alone
- `apart`            publishers that wait for that store
- `owed`             wills and dead letters that wait for that store
- `log_readers`      sessions that read the durable log instead of a queue
- `log_fetch`        one page of the log
"""
