"""Threads that write journal batches to a store that blocks.

- `committer`              group commits
- `application_committer`  the same for applications
- `reading`                pages of stored messages, read by the same thread
- `presence`               whether the broker was paused so long that another one may own its store
"""
